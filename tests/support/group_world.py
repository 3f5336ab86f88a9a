"""What a group runs in for tests: virtual time, a store that is a dict, calls answered once.

A call that is answered twice, a timer cancelled that is not armed, two writes at once: all of them
fail the test at once, whatever it is about.
"""

from typing import Any, Generic, TypeVar

from broker.errors import ErrorCode
from broker.group.classic.group import Group
from broker.group.config import GroupConfig, IdGenerator
from broker.group.effects import (
    ArmTimer,
    CancelTimer,
    Effect,
    MemberChanged,
    Persist,
    Reply,
    StateChanged,
)
from broker.group.events import (
    Event,
    Persisted,
    TimerFired,
)
from broker.group.groups import Groups, LoadedGroup
from broker.group.offsets import CommittedOffset, CommittedOffsets, TopicPartition
from broker.group.record import GroupRecord, decode, encode
from broker.group.timers import TimerKey

START_MS = 1_700_000_000_000
T = TypeVar("T")


class Call(Generic[T]):
    """A request and, once it is answered, its answer."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.answers: list[T] = []

    @property
    def is_parked(self) -> bool:
        return not self.answers

    @property
    def answer(self) -> T:
        assert self.answers, f"{self} is still parked"
        return self.answers[0]

    def __repr__(self) -> str:
        return f"<{self.name}>"


class GroupWorld:
    """One group, what runs its effects, and what became of them."""

    def __init__(self, group_id: str = "g", **config: int) -> None:
        self.group_id = group_id
        self.config = GroupConfig(**config)
        self.now = START_MS
        self.timers: dict[TimerKey, int] = {}
        self.stored: bytes | None = None
        self.stored_offsets: dict[TopicPartition, CommittedOffset] = {}
        self.hold_writes = False
        """Writes wait for `write_done`; otherwise they succeed at once."""
        self.write: Persist | None = None
        self.changes: list[StateChanged] = []
        self.member_changes: list[MemberChanged] = []
        self.calls: list[Call[Any]] = []
        self._minted = 0
        self.groups = self._new_groups()
        self.groups.start_loading(0)
        self._run(self.groups.finish_loading(0, [], self.now))

    # Time, store and groups

    def sleep(self, ms: int) -> None:
        """Let time pass; every timer fires at its time."""
        until = self.now + ms
        while True:
            due = min(self.timers.items(), key=lambda item: item[1], default=None)
            if due is None or due[1] > until:
                break
            self.now = max(self.now, due[1])
            self.fire(due[0])
        self.now = until

    def jump(self, ms: int) -> None:
        """The groups itself slept: whatever is due fires late, all at the same moment."""
        self.now += ms
        for key in [key for key, at in self.timers.items() if at <= self.now]:
            if self.timers.get(key, self.now + 1) <= self.now:
                self.fire(key)

    def fire(self, key: TimerKey) -> None:
        self.timers.pop(key, None)
        self.send(TimerFired(key))

    def write_done(self, error: ErrorCode = ErrorCode.NONE, *, stored: bool | None = None) -> None:
        """The write in flight ends. `stored` with an error: it happened all the same."""
        write = self.write
        assert write is not None, "no write is in flight"
        self.write = None
        if error is ErrorCode.NONE if stored is None else stored:
            self.stored_write(write.record)
        self.send(Persisted(write.token, error))

    def stored_write(self, record: GroupRecord | None) -> None:
        """This is what the store has now."""
        self.stored = None if record is None else encode(record)
        if record is None:
            self.stored_offsets.clear()

    def restart(self, generation_floor: int = 0) -> None:
        """The worker is killed and comes back: nothing is left but the store."""
        self.timers.clear()
        self.write = None
        self.calls = [call for call in self.calls if not call.is_parked]
        self.groups = self._new_groups()
        self.groups.start_loading(0)
        found = []
        if self.stored is not None:
            found = [LoadedGroup(self.group_id, decode(self.stored), self.stored_offsets)]
        self._run(self.groups.finish_loading(0, found, self.now, generation_floor))

    def give_up(self) -> None:
        self._run(self.groups.give_up(0, self.now))

    def send(self, event: Event) -> None:
        self._run(self.groups.handle(self.group_id, event, self.now))

    # --- what became of it ---

    @property
    def group(self) -> Group:
        return self.groups.by_id[self.group_id]

    @property
    def offsets(self) -> CommittedOffsets:
        return self.groups.offsets[self.group_id]

    @property
    def record(self) -> GroupRecord:
        assert self.stored is not None, "the group is not stored"
        return decode(self.stored)

    @property
    def parked(self) -> list[Call[Any]]:
        return [call for call in self.calls if call.is_parked]

    def assert_state(self, state: str, generation: int | None = None) -> None:
        assert self.groups.describe(self.group_id).state == state
        if generation is not None:
            assert self.group.generation_id == generation

    # --- underneath ---

    def _new_groups(self) -> Groups:
        return Groups(self.config, IdGenerator(self._mint, self._identity), lambda _: 0)

    def _mint(self, prefix: str) -> str:
        self._minted += 1
        return f"{prefix}-{self._minted}"

    def _identity(self, now_ms: int) -> str:
        self._minted += 1
        return f"cgp_{now_ms}_{self._minted}"

    def call(self, name: str) -> Call[Any]:
        call: Call[Any] = Call(name)
        self.calls.append(call)
        return call

    def _run(self, effects: list[Effect]) -> None:
        begun: Persist | None = None
        for effect in effects:
            match effect:
                case Reply(call=Call() as call, answer=answer):
                    assert not call.answers, f"{call} is answered twice: {answer}"
                    call.answers.append(answer)
                case ArmTimer(key=key, at_ms=at_ms):
                    self.timers[key] = at_ms
                case CancelTimer(key=key):
                    assert key in self.timers, f"{key} is cancelled but not armed"
                    del self.timers[key]
                case Persist():
                    assert self.write is None, "two writes at once"
                    if self.stored is not None:
                        assert effect.token > self.record.revision, "an old revision"
                    assert effect.record is None or effect.record.revision == effect.token
                    self.write = begun = effect
                case MemberChanged():
                    self.member_changes.append(effect)
                case StateChanged():
                    self.changes.append(effect)
                case _:
                    raise AssertionError(f"unknown effect {effect}")
        if begun is not None and not self.hold_writes:
            self.write_done()
