"""What a group runs in for tests: virtual time, a store that is a dict, calls answered once.

A call that is answered twice, a timer cancelled that is not armed, two writes at once: all of them
fail the test at once, whatever it is about.
"""

from collections.abc import Generator
from typing import Any, Generic, TypeVar

from moldau.broker.errors import ErrorCode
from moldau.broker.expressions import match_steps
from moldau.broker.group.classic.group import Group
from moldau.broker.group.config import GroupConfig, IdGenerator
from moldau.broker.group.effects import (
    Assign,
    Effect,
    MemberChanged,
    Persist,
    Resolve,
    StateChanged,
)
from moldau.broker.group.events import Assigned, Event, Resolved, TopicsChanged
from moldau.broker.group.groups import Groups
from moldau.broker.group.offsets import CommittedOffset, CommittedOffsets, TopicPartition
from moldau.broker.group.record import GroupRecord, LoadedGroup, decode, decode_member, encode
from moldau.broker.group.states import GroupState
from moldau.broker.group.topics import TopicFacts, TopicLookup
from moldau.broker.machine import (
    ArmTimer,
    CancelTimer,
    Persisted,
    Reply,
    TimerFired,
    TimerKey,
)

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


def completed(steps: Generator[None, None, T]) -> T:
    """Run a computation to its end."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


class GroupWorld:
    """One group, what runs its effects, and what became of them."""

    def __init__(self, group_id: str = "g", **config: Any) -> None:
        self.group_id = group_id
        self.config = GroupConfig(**config)
        self.topics: dict[str, TopicFacts] = {}
        self.now = START_MS
        self.timers: dict[TimerKey, int] = {}
        self.stored: bytes | None = None
        self.stored_members: dict[str, bytes] = {}
        """Of a group of the consumer protocol."""
        self.stored_offsets: dict[TopicPartition, CommittedOffset] = {}
        self.hold_writes = False
        """Writes wait for `write_done`; otherwise they succeed at once."""
        self.hold_jobs = False
        """Targets and expressions wait for `jobs_done`; otherwise they are computed at once."""
        self.jobs: list[Assign | Resolve] = []
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
            self.stored_write(write)
        self.send(Persisted(write.revision, error))

    def stored_write(self, write: Persist) -> None:
        """This is what the store has now."""
        if write.whole:
            self.stored_members.clear()
        for member_id, snapshot in write.members.items():
            if snapshot is None:
                self.stored_members.pop(member_id, None)
            else:
                self.stored_members[member_id] = encode(snapshot())
        self.stored = None if write.record is None else encode(write.record)
        if write.record is None:
            self.stored_offsets.clear()
            self.stored_members.clear()

    def restart(self, min_generation: int = 0) -> None:
        """The worker is killed and comes back: nothing is left but the store."""
        self.timers.clear()
        self.write = None
        self.jobs.clear()
        self.calls = [call for call in self.calls if not call.is_parked]
        self.groups = self._new_groups()
        self.groups.start_loading(0)
        found = []
        if self.stored is not None:
            members = tuple(map(decode_member, self.stored_members.values()))
            record = decode(self.stored)
            found = [LoadedGroup(self.group_id, record, self.stored_offsets, {}, members)]
        self._run(self.groups.finish_loading(0, found, self.now, min_generation))

    def give_up(self) -> None:
        self._run(self.groups.give_up(0, self.now))

    def send(self, event: Event) -> None:
        self._run(self.groups.handle(self.group_id, event, self.now))

    # --- what became of it ---

    @property
    def group(self) -> Group:
        group = self.groups.by_id[self.group_id]
        assert isinstance(group, Group)
        return group

    @property
    def offsets(self) -> CommittedOffsets:
        return self.groups.offsets[self.group_id]

    @property
    def record(self) -> GroupRecord:
        assert self.stored is not None, "the group is not stored"
        record = decode(self.stored)
        assert isinstance(record, GroupRecord)
        return record

    @property
    def revision(self) -> int:
        """The revision that is stored."""
        return 0 if self.stored is None else decode(self.stored).revision

    @property
    def parked(self) -> list[Call[Any]]:
        return [call for call in self.calls if call.is_parked]

    def assert_state(self, state: str, generation: int | None = None) -> None:
        group = self.groups.by_id.get(self.group_id)
        assert (GroupState.DEAD if group is None else group.state) == state
        if generation is not None and group is not None:
            assert group.generation_id == generation

    # --- underneath ---

    def _new_groups(self) -> Groups:
        def by_id(topic_id: bytes) -> TopicFacts | None:
            return next((one for one in self.topics.values() if one.topic_id == topic_id), None)

        topics = TopicLookup(self.topics.get, by_id, lambda: list(self.topics))
        return Groups(self.config, IdGenerator(self._mint, self._identity), lambda _: 0, topics)

    # --- topics ---

    def make_topic(self, name: str, partitions: int) -> None:
        self._minted += 1
        topic_id = self._minted.to_bytes(16, "big")
        self.topics[name] = TopicFacts(name, topic_id, partitions)
        self.report_topics(name)

    def grow_topic(self, name: str, partitions: int) -> None:
        self.topics[name] = self.topics[name]._replace(partitions=partitions)
        self.report_topics(name)

    def delete_topic(self, name: str) -> None:
        del self.topics[name]
        self.report_topics(name)

    def report_topics(self, *names: str) -> None:
        for group_id in self.groups.concerned():
            self._run(self.groups.handle(group_id, TopicsChanged(frozenset(names)), self.now))

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
                    if self.write is not None:
                        # Only of a group that has just been converted: the later one wins.
                        was, now = type(self.write.record), type(effect.record)
                        assert was is not now, "two writes at once"
                        self.stored_write(self.write)
                    assert effect.revision > self.revision, "an old revision"
                    assert effect.record is None or effect.record.revision == effect.revision
                    self.write = begun = effect
                case Assign() | Resolve():
                    self.jobs.append(effect)
                case MemberChanged():
                    self.member_changes.append(effect)
                case StateChanged():
                    self.changes.append(effect)
                case _:
                    raise AssertionError(f"unknown effect {effect}")
        if begun is not None and not self.hold_writes:
            self.write_done()
        if not self.hold_jobs:
            self.jobs_done()

    def jobs_done(self) -> None:
        """All that was to be computed is there."""
        while self.jobs:
            job = self.jobs.pop(0)
            if isinstance(job, Assign):
                self.send(Assigned(job.job, completed(job.job.steps())))
            else:
                names = self.topics if job.names is None else job.names
                matches = completed(match_steps(job.patterns, names))
                self.send(Resolved(matches, job.names is None))
