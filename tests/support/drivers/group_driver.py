"""A consumer group in virtual time: members by name, a manual clock, a dict as the store.

g = GroupDriver()
a, b = g.join("a"), g.join("b")
g.sleep(3_000)                      # fires what is due, in order
g.assert_state("CompletingRebalance")
assert a.answer.generation_id == 1

`GroupWorld` is what it runs in; here is what members do.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from moldau.broker.errors import ErrorCode
from moldau.broker.group.effects import (
    DeleteAnswer,
    JoinAnswer,
    LeaveAnswer,
    SyncAnswer,
)
from moldau.broker.group.events import (
    Delete,
    Join,
    Leave,
    LeavingMember,
    Protocols,
    Sync,
)
from moldau.broker.group.group_base import TimerKind
from moldau.broker.group.offsets import CommittedOffset, Committer, TopicPartition
from moldau.broker.machine import TimerKey
from tests.support.drivers.group_world import Call, GroupWorld


class GroupDriver(GroupWorld):
    def __init__(self, group_id: str = "g", **config: Any) -> None:
        super().__init__(group_id, **config)
        self.ids: dict[str, str] = {}
        """The member id that the member of a name uses."""
        self.generations: dict[str, int] = {}

    # --- requests, by the names of members ---

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
        """Join as clients do: after MEMBER_ID_REQUIRED they join again with their id."""
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
        """Send SyncGroup, with assignments by name if it is the leader's."""
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
        return self.groups.heartbeat(
            self.group_id,
            self.id_of(name) if member_id is None else member_id,
            instance,
            self.generations.get(name, -1) if generation is None else generation,
            self.now,
        )

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
        committer = Committer(
            self.ids.get(name, "") if member_id is None else member_id,
            instance,
            self.generations.get(name, -1) if generation is None else generation,
            version,
            is_transactional=transactional,
        )
        return self.groups.check_commit(self.group_id, committer, self.now)

    def commit(self, topic: str, partition: int, committed: CommittedOffset) -> None:
        """An offset that was checked and stored."""
        offsets = {TopicPartition(topic, partition): committed}
        self.stored_offsets.update(offsets)
        order = self.groups.pending.next_order()
        self._run(self.groups.committed(self.group_id, offsets, self.now, order))

    # --- shorthands ---

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

    # --- names and ids ---

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
        """Milliseconds until that timer fires; None: it is not armed."""
        member_id = "" if name is None else self.id_of(name)
        at = self.timers.get(TimerKey(self.group_id, kind, member_id))
        return None if at is None else at - self.now

    def _learn(self, name: str, call: Call[JoinAnswer]) -> None:
        if call.is_parked:
            return
        if call.answer.error in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            self.ids[name] = call.answer.member_id
        if call.answer.error is ErrorCode.NONE:
            self.generations[name] = call.answer.generation_id
