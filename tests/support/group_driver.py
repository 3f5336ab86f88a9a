"""A consumer group in virtual time: members by name, a clock that is told, a store that is a dict.

g = GroupDriver()
a, b = g.join("a"), g.join("b")
g.sleep(3_000)                      # fires what is due, in order
g.assert_state("CompletingRebalance")
assert a.answer.generation_id == 1

A call that is answered twice, a timer cancelled that is not armed, two writes at once: all of them
fail the test at once, whatever it is about.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeVar

from broker.errors import ErrorCode
from broker.group.config import GroupConfig, Minting
from broker.group.coordinator import Coordinator, StoredGroup
from broker.group.effects import (
    ArmTimer,
    CancelTimer,
    DeleteAnswer,
    Effect,
    JoinAnswer,
    LeaveAnswer,
    Persist,
    Reply,
    StateChanged,
    SyncAnswer,
)
from broker.group.events import (
    Delete,
    Event,
    Heartbeat,
    Join,
    Leave,
    LeavingMember,
    Persisted,
    Protocols,
    Sync,
    TimerFired,
)
from broker.group.group import Group
from broker.group.offsets import CommittedOffset, OffsetBook, TopicPartition
from broker.group.record import GroupRecord, decode, encode
from broker.group.timers import TimerKey, TimerKind

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


class GroupDriver:
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
        self.calls: list[Call[Any]] = []
        self.ids: dict[str, str] = {}
        """The member id that the member of a name uses."""
        self.generations: dict[str, int] = {}
        self._minted = 0
        self.coordinator = self._new_coordinator()
        self.coordinator.start_loading(0)
        self._run(self.coordinator.finish_loading(0, [], self.now))

    # Requests, by the names of members

    def join_once(
        self,
        name: str,
        *,
        member_id: str | None = None,
        instance: str | None = None,
        version: int = 9,
        protocols: Protocols = (("range", b"m"),),
        protocol_type: str = "consumer",
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        client_host: str = "/127.0.0.1",
        reason: str | None = None,
    ) -> Call[JoinAnswer]:
        """One JoinGroup, with the fields as a handler takes them from this version."""
        call: Call[JoinAnswer] = self.call(f"join of {name}")
        self.send(
            Join(
                call=call,
                member_id=self.ids.get(name, "") if member_id is None else member_id,
                instance_id=instance,
                client_id=name,
                client_host=client_host,
                session_timeout_ms=session_ms,
                rebalance_timeout_ms=session_ms if version == 0 else rebalance_ms,
                protocol_type=protocol_type,
                protocols=protocols,
                requires_known_member_id=version >= 4,
                supports_skip_assignment=version >= 9,
                reason=reason,
            )
        )
        self._learn(name, call)
        return call

    def join(self, name: str, **options: Any) -> Call[JoinAnswer]:
        """Join as clients do: told to come back with an id, they come back."""
        call = self.join_once(name, **options)
        if not call.is_parked and call.answer.error is ErrorCode.MEMBER_ID_REQUIRED:
            call = self.join_once(name, **options)
        return call

    def sync(
        self,
        name: str,
        assignments: Mapping[str, bytes] | None = None,
        *,
        member_id: str | None = None,
        generation: int | None = None,
        instance: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> Call[SyncAnswer]:
        """With assignments by name: the leader's."""
        call: Call[SyncAnswer] = self.call(f"sync of {name}")
        self.learn()
        given = tuple((self.ids.get(to, to), data) for to, data in (assignments or {}).items())
        self.send(
            Sync(
                call,
                self.id_of(name) if member_id is None else member_id,
                instance,
                self.generations.get(name, -1) if generation is None else generation,
                protocol_type,
                protocol_name,
                given,
            )
        )
        return call

    def heartbeat(
        self,
        name: str,
        *,
        member_id: str | None = None,
        generation: int | None = None,
        instance: str | None = None,
    ) -> ErrorCode:
        self.learn()
        call: Call[Any] = self.call(f"heartbeat of {name}")
        self.send(
            Heartbeat(
                call,
                self.id_of(name) if member_id is None else member_id,
                instance,
                self.generations.get(name, -1) if generation is None else generation,
            )
        )
        error = call.answer.error
        assert isinstance(error, ErrorCode)
        return error

    def leave(self, *names: str) -> LeaveAnswer:
        return self.leave_members(*(LeavingMember(self.id_of(name)) for name in names))

    def leave_members(self, *members: LeavingMember) -> LeaveAnswer:
        call: Call[LeaveAnswer] = self.call("leave")
        self.send(Leave(call, members))
        return call.answer

    def delete(self) -> Call[DeleteAnswer]:
        call: Call[DeleteAnswer] = self.call("delete")
        self.send(Delete(call))
        return call

    def check_commit(
        self,
        name: str = "",
        *,
        member_id: str | None = None,
        generation: int | None = None,
        instance: str | None = None,
        version: int = 9,
        transactional: bool = False,
    ) -> ErrorCode:
        """OffsetCommit; without a name that of a simple consumer."""
        self.learn()
        return self.coordinator.check_commit(
            self.group_id,
            self.ids.get(name, "") if member_id is None else member_id,
            instance,
            self.generations.get(name, -1) if generation is None else generation,
            self.now,
            knows_group_id_not_found=version >= 9,
            transactional=transactional,
        )

    def commit(self, topic: str, partition: int, committed: CommittedOffset) -> None:
        """An offset that was checked and stored."""
        offsets = {TopicPartition(topic, partition): committed}
        self.stored_offsets.update(offsets)
        self._run(self.coordinator.committed(self.group_id, offsets, self.now))

    # Time, store and coordinator

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
        """The coordinator itself slept: whatever is due fires late, all at the same moment."""
        self.now += ms
        for key in [key for key, at in self.timers.items() if at <= self.now]:
            if self.timers.get(key, self.now + 1) <= self.now:
                self.fire(key)

    def fire(self, key: TimerKey) -> None:
        self.timers.pop(key, None)
        self.send(TimerFired(key))

    def write_done(self, error: ErrorCode = ErrorCode.NONE, *, stored: bool | None = None) -> None:
        """The write in flight ends. `stored` with an error: the outcome that nobody knew."""
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

    def restart(self) -> None:
        """The worker is killed and comes back: nothing is left but the store."""
        self.timers.clear()
        self.write = None
        self.calls = [call for call in self.calls if not call.is_parked]
        self.coordinator = self._new_coordinator()
        self.coordinator.start_loading(0)
        found = []
        if self.stored is not None:
            found = [StoredGroup(self.group_id, decode(self.stored), self.stored_offsets)]
        self._run(self.coordinator.finish_loading(0, found, self.now))

    def give_up(self) -> None:
        self._run(self.coordinator.give_up(0, self.now))

    def send(self, event: Event) -> None:
        self._run(self.coordinator.handle(self.group_id, event, self.now))

    # What became of it

    @property
    def group(self) -> Group:
        return self.coordinator.groups[self.group_id]

    @property
    def book(self) -> OffsetBook:
        return self.coordinator.books[self.group_id]

    @property
    def record(self) -> GroupRecord:
        assert self.stored is not None, "the group is not stored"
        return decode(self.stored)

    @property
    def parked(self) -> list[Call[Any]]:
        return [call for call in self.calls if call.is_parked]

    def assert_state(self, state: str, generation: int | None = None) -> None:
        assert self.coordinator.describe(self.group_id).state == state
        if generation is not None:
            assert self.group.generation_id == generation

    def id_of(self, name: str) -> str:
        self.learn()
        if name in self.ids:
            return self.ids[name]
        for member in self.group.roster.by_id.values():  # its first Join is parked
            if member.client_id == name:
                return member.member_id
        raise AssertionError(f"{name} has no member id")

    def learn(self) -> None:
        """Members read their answers."""
        for call in self.calls:
            if call.name.startswith("join of "):
                self._learn(call.name.removeprefix("join of "), call)

    def armed(self, kind: TimerKind, name: str | None = None) -> int | None:
        """In how many milliseconds that timer fires; None: it is not armed."""
        member_id = "" if name is None else self.id_of(name)
        at = self.timers.get(TimerKey(self.group_id, kind, member_id))
        return None if at is None else at - self.now

    # Shorthands

    def form(self, *names: str, options: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        """A Stable group of these members, each with its name as assignment."""
        for name in names:
            self.join(name, **(options or {}).get(name, {}))
        self.sleep(self.config.initial_rebalance_delay_ms)
        while self.group.state == "PreparingRebalance":
            self.sleep(self.config.initial_rebalance_delay_ms)
        self.sync_all(names)
        self.assert_state("Stable")

    def rejoin_all(self, names: Iterable[str], **options: Any) -> list[Call[JoinAnswer]]:
        return [self.join(name, **options) for name in names]

    def sync_all(self, names: Iterable[str]) -> list[Call[SyncAnswer]]:
        """Everybody syncs, the leader last: with each member's name as its assignment."""
        self.learn()
        leader = self.leader()
        ordered = [name for name in names if name != leader] + [leader]
        given = {name: name.encode() for name in names}
        return [self.sync(name, given if name == leader else None) for name in ordered]

    def leader(self) -> str:
        self.learn()
        leads = self.group.roster.leader
        return next(name for name, member_id in self.ids.items() if member_id == leads)

    # Underneath

    def _new_coordinator(self) -> Coordinator:
        return Coordinator(self.config, Minting(self._mint, self._identity), lambda _: 0)

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

    def _learn(self, name: str, call: Call[JoinAnswer]) -> None:
        if call.is_parked:
            return
        if call.answer.error in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            self.ids[name] = call.answer.member_id
        if call.answer.error is ErrorCode.NONE:
            self.generations[name] = call.answer.generation_id

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
                case StateChanged():
                    self.changes.append(effect)
                case _:
                    raise AssertionError(f"unknown effect {effect}")
        if begun is not None and not self.hold_writes:
            self.write_done()
