"""Who may begin a handshake and whose time is over, without sockets."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from moldau.broker.tls.handshake_queue import (
    HANDSHAKE_S,
    IDLE_S,
    MAX_ACTIVE,
    MAX_UNFINISHED,
    TOTAL_S,
    HandshakeQueue,
)


def never(key: int) -> bool:
    return False


def always(key: int) -> bool:
    return True


def shaking(queue: HandshakeQueue[int], number: int, now: float) -> list[int]:
    """Connections that have spoken, as many as get their turn."""
    for key in range(number):
        assert queue.accepted(key, now) is None
        queue.spoke(key)
    begun = []
    while (next_one := queue.begin(now)[0]) is not None:
        begun.append(next_one)
    return begun


def test_who_never_speaks_or_never_answers_is_cut() -> None:
    queue = HandshakeQueue[int]()
    queue.accepted(7, 0)
    assert shaking(queue, 3, 0) == [0, 1, 2]
    assert queue.overdue(HANDSHAKE_S, never) == []
    assert sorted(queue.overdue(HANDSHAKE_S + 0.1, never)) == [0, 1, 2, 7]
    assert len(queue) == 0


def test_progress_extends_the_time_but_not_without_end() -> None:
    queue = HandshakeQueue[int]()
    shaking(queue, 1, 0)
    now = 0.0
    while now + HANDSHAKE_S - 1 < TOTAL_S:
        now += HANDSHAKE_S - 1
        assert queue.overdue(now, always) == []
    assert queue.overdue(TOTAL_S + 1, always) == [0]


def test_time_that_the_process_lost_does_not_count() -> None:
    queue = HandshakeQueue[int]()
    queue.accepted(7, 0)
    shaking(queue, 1, 0)
    queue.forgive(1_000)
    assert queue.overdue(1_000 + HANDSHAKE_S, never) == []
    assert sorted(queue.overdue(1_001 + HANDSHAKE_S, never)) == [0, 7]


def test_waiting_for_ones_turn_takes_nothing_of_ones_time() -> None:
    queue = HandshakeQueue[int]()
    begun = shaking(queue, MAX_ACTIVE + 1, 0)
    assert begun == list(range(MAX_ACTIVE))
    assert MAX_ACTIVE not in queue.overdue(1_000, never)
    assert queue.begin(1_000) == (MAX_ACTIVE, None)
    assert queue.overdue(1_000 + HANDSHAKE_S, never) == []


def test_handshakes_whose_clients_do_not_answer_keep_no_one_out() -> None:
    queue = HandshakeQueue[int]()
    shaking(queue, MAX_UNFINISHED, 0)
    now, begun = 0.0, MAX_ACTIVE
    while begun < MAX_UNFINISHED:
        now += IDLE_S + 0.01
        queue.overdue(now, never)
        while queue.begin(now)[0] is not None:
            begun += 1
        assert now < HANDSHAKE_S
    queue.accepted(-1, now)
    queue.spoke(-1)
    queue.overdue(now + IDLE_S + 0.01, never)
    assert queue.begin(now) == (-1, 0)  # the one that was idle longest gives way


class Crowd(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.queue = HandshakeQueue[int]()
        self.silent: list[int] = []
        self.ready: list[int] = []
        self.shaking: list[int] = []
        self.now, self.next = 0.0, 0

    @rule(number=st.sampled_from([1, 5, 400]))
    def come(self, number: int) -> None:
        for _ in range(number):
            self.next += 1
            self.silent.append(self.next)
            loser = self.queue.accepted(self.next, self.now)
            if loser is not None:
                assert loser == self.silent.pop(0)

    @precondition(lambda self: self.silent)
    @rule(share=st.integers(1, 4))
    def speak(self, share: int) -> None:
        for key in self.silent[::share]:
            self.silent.remove(key)
            self.ready.append(key)
            self.queue.spoke(key)

    @rule()
    def begin(self) -> None:
        while True:
            key, loser = self.queue.begin(self.now)
            if loser is not None:
                self.shaking.remove(loser)
            if key is None:
                break
            assert key == self.ready.pop(0)
            self.shaking.append(key)

    @rule(share=st.integers(1, 4))
    def end(self, share: int) -> None:
        for key in self.shaking[::share]:
            self.shaking.remove(key)
            self.queue.ended(key)

    @rule(seconds=st.sampled_from([0.5, IDLE_S + 1, HANDSHAKE_S + 1]), share=st.integers(1, 4))
    def time_passes(self, seconds: float, share: int) -> None:
        self.now += seconds
        advanced = set(self.shaking[::share])
        for key in self.queue.overdue(self.now, advanced.__contains__):
            (self.shaking if key in self.shaking else self.silent).remove(key)

    @invariant()
    def bounded(self) -> None:
        assert len(self.queue) == len(self.silent) + len(self.ready) + len(self.shaking)
        assert len(self.silent) <= MAX_UNFINISHED
        assert len(self.shaking) <= MAX_UNFINISHED

    def teardown(self) -> None:
        """Whoever has spoken gets its turn, whatever the others do."""
        deadline = self.now + 4 * TOTAL_S
        while self.ready:
            self.time_passes(IDLE_S + 1, 4)
            self.begin()
            assert self.now < deadline


TestCrowd = Crowd.TestCase
TestCrowd.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
