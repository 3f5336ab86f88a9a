"""Memory of frames that have not arrived whole: bounded, shared fairly, and never a deadlock."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from moldau.broker.net.frame_memory import CHECK_S, LANES, PACE, PATIENCE_S, WAIT_S, FrameMemory

MIB = 1 << 20
LIMIT = 32 * MIB
LARGEST = 100 * MIB
FIRST = 16 << 10
SMALL = LANES[0][0]


class Client:
    """A connection with one frame at a time. `rate`: bytes per second that it sends while it is
    read from; 0: it has stopped in the middle."""

    def __init__(self, memory: FrameMemory, size: int, rate: float) -> None:
        self.frames, self.size, self.rate = memory, size, rate
        self.have = self.taken = 0
        self.waits = self.is_closed = self.is_done = False
        self.is_receiving = True

    def begin(self, have: int, now: float) -> None:
        self.have = self.taken = min(have, self.size - 1)
        self.frames.hold(self, self.taken, self.size, self.have, now, is_new=True)
        if not self.is_closed:
            self._grow(now)

    def receive(self, nbytes: int, now: float) -> None:
        if self.waits or self.is_closed or self.is_done:
            return
        self.have = min(self.have + nbytes, self.taken)
        if self.have == self.size:
            self.is_done = True
            self.frames.release(self)
            return
        self.frames.hold(self, self.taken, self.size, self.have, now)
        if self.have == self.taken and not self.is_closed:
            self._grow(now)

    def _grow(self, now: float) -> None:
        wanted = min(self.size, max(FIRST, 2 * self.taken))
        if self.frames.ask(self, wanted, now):
            self.taken = wanted
        elif not self.is_closed:
            self.waits = True

    def room_found(self) -> None:
        assert self.waits
        self.waits = False
        self.taken = min(self.size, max(FIRST, 2 * self.taken))

    def give_way(self) -> None:
        assert not self.is_done
        assert not self.is_closed
        self.is_closed = True
        self.waits = False


class Memory(RuleBasedStateMachine):
    """Any sequence of frames that begin, go on, stop and end."""

    def __init__(self) -> None:
        super().__init__()
        self.frames = FrameMemory(LIMIT)
        self.clients: list[Client] = []
        self.now = 0.0

    def living(self) -> list[Client]:
        return [each for each in self.clients if not (each.is_closed or each.is_done)]

    @rule(size=st.sampled_from([10_000, SMALL, MIB, 20 * MIB, LARGEST]), have=st.integers(1, SMALL))
    def begin(self, size: int, have: int) -> None:
        client = Client(self.frames, size, 0)
        self.clients.append(client)
        client.begin(have, self.now)

    @precondition(lambda self: len(self.clients) < 200)
    @rule(size=st.sampled_from([MIB, 10 * MIB]))
    def many_begin(self, size: int) -> None:
        for _ in range(60):
            self.begin(size, SMALL)

    @precondition(lambda self: self.living())
    @rule(data=st.data(), nbytes=st.integers(1, 30 * MIB))
    def receive(self, data: st.DataObject, nbytes: int) -> None:
        data.draw(st.sampled_from(self.living())).receive(nbytes, self.now)

    @precondition(lambda self: self.living())
    @rule(data=st.data())
    def hang_up(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.living()))
        client.is_closed, client.waits = True, False
        self.frames.release(client)

    @rule(seconds=st.sampled_from([CHECK_S, 1.0, PATIENCE_S + 1]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.frames.check(self.now)

    @invariant()
    def counted(self) -> None:
        assert self.frames.held == sum(each.taken for each in self.living())
        assert self.frames.waiting == sum(each.waits for each in self.living())

    @invariant()
    def bounded(self) -> None:
        assert self.frames.held <= self.frames.most <= LIMIT + 12 * MIB + LARGEST

    @invariant()
    def never_all_wait(self) -> None:
        """Some connection that waits for nothing holds the memory, and has to keep pace."""
        living = self.living()
        assert not living or not all(each.waits for each in living)

    def teardown(self) -> None:
        """Whatever the state: if all go on sending, or stop, in the end no one waits."""
        for number, client in enumerate(self.clients):
            client.rate = 0 if number % 2 else 20 * PACE
        finish(self.frames, self.clients, self.now)
        assert all(each.is_done for each in self.clients[::2] if not each.is_closed)
        assert self.frames.waiting == 0


TestMemory = Memory.TestCase
TestMemory.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)


def test_frames_that_may_finish_push_out_those_that_have_just_begun() -> None:
    """The first bytes of many frames have taken the room that the lanes promise."""
    memory = Memory()
    memory.many_begin(MIB)
    for client in memory.living()[:2]:
        client.is_closed, client.waits = True, False
        memory.frames.release(client)
    memory.many_begin(10 * MIB)
    memory.many_begin(10 * MIB)
    for client in memory.living():
        client.receive(SMALL, memory.now)
        memory.bounded()
        memory.counted()
        memory.never_all_wait()


def finish(frames: FrameMemory, clients: list[Client], now: float, limit_s: float = 600) -> float:
    """Let time pass until every client that sends is done or closed, and none waits."""
    begun = now
    while frames.waiting or any(
        each.rate and not (each.is_done or each.is_closed) for each in clients
    ):
        now += CHECK_S
        assert now - begun < limit_s, "a deadlock"
        for client in clients:
            left = int(client.rate * CHECK_S)
            while left > 0 and not (client.is_done or client.is_closed or client.waits):
                step = min(left, client.taken - client.have)
                client.receive(step, now)
                left -= step
        frames.check(now)
    return now


def test_a_slow_client_may_take_all_day_while_no_one_waits() -> None:
    frames = FrameMemory(LIMIT)
    slow = Client(frames, 2 * MIB, 100)
    slow.begin(100, 0)
    now = finish(frames, [slow], 0, 50_000)
    assert slow.is_done
    assert now > 20_000


def test_stopped_clients_give_way_longest_first_and_only_as_many_as_needed() -> None:
    frames = FrameMemory(LIMIT)
    stopped = [Client(frames, LARGEST, 0) for _ in range(8)]
    now = 0.0
    for client in stopped:
        now += 1
        client.begin(SMALL, now)
        for _ in range(3):
            client.receive(LARGEST, now)
    assert frames.held == 32 * MIB
    honest = Client(frames, 3 * MIB, 10 * PACE)
    honest.begin(SMALL, now)
    finish(frames, [honest], now)
    assert honest.is_done
    assert not any(each.is_closed for each in stopped)  # there was a place in a lane for it
    crowd = [Client(frames, 6 * MIB, 0) for _ in range(4)]
    now += PATIENCE_S + 20
    for client in crowd:
        client.begin(SMALL, now)
    assert any(each.waits for each in crowd)
    frames.check(now)
    closed = [each.is_closed for each in stopped]
    assert closed == sorted(closed, reverse=True)
    assert 0 < sum(closed) < 8
    assert not any(each.is_closed or each.waits for each in crowd)


def test_one_byte_a_second_does_not_count_as_keeping_pace() -> None:
    frames = FrameMemory(LIMIT)
    dripping = [Client(frames, MIB, 4) for _ in range(400)]
    for client in dripping:
        client.begin(100_000, 0)
    now = PATIENCE_S + 1
    for client in dripping:
        client.receive(1, now)
    honest = [Client(frames, 20 * MIB, 2 * PACE) for _ in range(6)]
    for client in honest:
        client.begin(SMALL, now)
    while not all(each.is_done for each in honest):
        now += CHECK_S
        assert now < 120
        for client in dripping:
            client.receive(1, now)
        for client in honest:
            client.receive(2 * MIB, now)
        frames.check(now)
    assert not any(each.is_closed for each in honest)
    assert any(each.is_closed for each in dripping)


def test_small_frames_overtake_large_ones_which_get_their_turn() -> None:
    frames = FrameMemory(LIMIT)
    hoarders = [Client(frames, LARGEST, 20 * PACE) for _ in range(20)]
    for client in hoarders:
        client.begin(SMALL, 0)
        for _ in range(6):
            client.receive(LARGEST, 0)
    waiting = sum(each.waits for each in hoarders)
    assert waiting > 10
    rng, now, small = random.Random(1), 0.0, list[Client]()
    while not all(each.is_done or each.is_closed for each in hoarders):
        now += CHECK_S
        assert now < 3_000
        for _ in range(3):
            small.append(Client(frames, rng.randrange(SMALL, 2 * MIB), 8 * PACE))
            small[-1].begin(rng.randrange(1, SMALL), now)
        for client in (*small, *hoarders):
            for _ in range(8):
                client.receive(int(client.rate * CHECK_S / 8), now)
        small = [each for each in small if not each.is_done]
        assert not any(each.is_closed for each in small)
        frames.check(now)
    assert all(each.is_done for each in hoarders)


def test_what_the_process_lost_itself_is_forgiven() -> None:
    frames = FrameMemory(LIMIT)
    clients = [Client(frames, LARGEST, 2 * PACE) for _ in range(20)]
    for client in clients:
        client.begin(SMALL, 0)
        for _ in range(6):
            client.receive(LARGEST, 0)
    assert frames.waiting
    frames.forgive(60)
    frames.check(60)
    assert not any(each.is_closed for each in clients)
    frames.check(60 + PATIENCE_S + LARGEST / PACE + 1)
    assert any(each.is_closed for each in clients)


def test_a_crowd_that_never_finishes_does_not_keep_out_those_that_do() -> None:
    frames = FrameMemory(LIMIT)
    crowd = [Client(frames, MIB, 0) for _ in range(600)]
    for client in crowd:
        client.begin(60_000, 0)
    assert frames.waiting > 300
    now, served = 0.0, 0
    honest = Client(frames, 900_000, 0)
    honest.begin(60_000, now)
    while now < 20:
        now += CHECK_S
        for _ in range(6):
            honest.receive(900_000, now)
        if honest.is_done:
            served += 1
            honest = Client(frames, 900_000, 0)
            honest.begin(60_000, now)
        assert not honest.is_closed
        frames.check(now)
    assert served > 20
    while frames.waiting:
        now += CHECK_S
        assert now < 2 * WAIT_S + 10
        frames.check(now)


@given(st.lists(st.integers(1, 2 * LARGEST), min_size=1, max_size=40))
def test_whoever_is_not_read_from_for_our_reasons_does_not_give_way(sizes: list[int]) -> None:
    frames = FrameMemory(LIMIT)
    clients = [Client(frames, size + 1, 0) for size in sizes]
    for client in clients:
        client.is_receiving = False
        client.begin(SMALL, 0)
    frames.check(1_000)
    assert not any(each.is_closed for each in clients)
