"""The groups of one worker by id, and the answers for unknown, loading and foreign groups.

There is no I/O here: the coordinator says which slots the worker owns and what the store contains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeAlias

from moldau.broker.errors import ErrorCode
from moldau.broker.group import commits, views
from moldau.broker.group.absent_group import answer_absent, refuse, refuse_other_protocol
from moldau.broker.group.classic import join, sessions
from moldau.broker.group.classic.group import Group
from moldau.broker.group.config import GroupConfig, IdGenerator
from moldau.broker.group.effects import Answer, Effect, Persist
from moldau.broker.group.events import (
    Assigned,
    ConsumerHeartbeat,
    Delete,
    Event,
    Join,
    Request,
    Resolved,
    ShareHeartbeat,
    Sync,
    TopicsChanged,
)
from moldau.broker.group.group_base import GroupBase
from moldau.broker.group.modern import classic_members, conversion
from moldau.broker.group.modern.core import ModernCore
from moldau.broker.group.modern.group import ConsumerGroup
from moldau.broker.group.modern.members import Member
from moldau.broker.group.modern.share_group import ShareGroup
from moldau.broker.group.offsets import (
    CommittedOffset,
    CommittedOffsets,
    Committer,
    TopicPartition,
)
from moldau.broker.group.pending_offsets import Pending, PendingCommit
from moldau.broker.group.record import (
    SHARE_KIND,
    ConsumerMember,
    ConsumerRecord,
    GroupRecord,
    LoadedGroup,
)
from moldau.broker.group.states import GroupState
from moldau.broker.group.topics import NO_TOPICS, TopicLookup
from moldau.broker.machine import Persisted, Reply, SlotTable, TimerFired

Resting: TypeAlias = tuple[Member, int]
"""A member that has nothing to ask for, and its heartbeat interval."""


class Groups(SlotTable[GroupBase]):
    """The groups of a worker. A group belongs to the slot of its id."""

    def __init__(
        self,
        config: GroupConfig,
        ids: IdGenerator,
        slot_of: Callable[[str], int],
        topics: TopicLookup = NO_TOPICS,
    ) -> None:
        super().__init__(slot_of)
        self.config = config
        self._ids = ids
        self._topics = topics
        self._patient: dict[int, tuple[int, int]] = {}
        """The end of the patience and the lowest generation, by slot."""
        self.offsets: dict[str, CommittedOffsets] = {}
        """The offsets of every group in `by_id`, and of groups that are being reloaded."""
        self.pending = Pending(self.offsets, slot_of)
        self._in_progress = commits.InProgress()

    # --- slots ---

    def finish_loading(
        self, slot: int, stored: Iterable[LoadedGroup], now_ms: int, min_generation: int = 0
    ) -> list[Effect]:
        """Restore the groups of a slot. Only sessions start again.

        `min_generation` is where the next generations begin if the store may have lost some.
        """
        effects: list[Effect] = []
        for found in stored:
            self.offsets[found.group_id] = CommittedOffsets(found.offsets)
            self.pending.loaded(found.group_id, found.pending)
            restore_it = partial(self._restore, found, now_ms, min_generation)
            effects += self.guarded(found.group_id, restore_it)
        self._finish_loading(slot)
        if min_generation:
            # The store has lost something. Members of a group that was lost with it join again
            # instead of giving up, and must not meet a generation that they have already seen.
            until_ms = now_ms + self.config.consumer.limits.session_timeout_ms
            self._patient[slot] = until_ms, min_generation
        return effects

    def _restore(self, found: LoadedGroup, now_ms: int, min_generation: int) -> list[Effect]:
        group: GroupBase
        if found.record is None:
            group, effects = Group.create(found.group_id, self.config, self._ids, now_ms)
        else:
            group, effects = self._restore_from(found.record, found.members, now_ms, min_generation)
        self.put(found.group_id, group)
        return effects

    def _restore_from(
        self,
        record: GroupRecord | ConsumerRecord,
        members: Iterable[ConsumerMember],
        now_ms: int,
        min_generation: int,
    ) -> tuple[GroupBase, list[Effect]]:
        if isinstance(record, GroupRecord):
            return Group.restore(record, self.config, self._ids, now_ms, min_generation)
        restore = ShareGroup.restore if record.kind == SHARE_KIND else ConsumerGroup.restore
        return restore(
            record, members, self.config, self._ids, self._topics, now_ms, min_generation
        )

    def give_up(self, slot: int, now_ms: int) -> list[Effect]:
        """Give the slot up: another worker owns it, or this one stops."""
        effects: list[Effect] = []
        for group_id in [one for one in self._reloading if self._slot_of(one) == slot]:
            self.offsets.pop(group_id, None)
        for group in self._give_up(slot):
            effects += self.guarded(group.group_id, partial(group.unload, now_ms))
            del self.offsets[group.group_id]
        self.pending.given_up(slot)
        return effects

    # --- groups that failed: their offsets stay, and no event changes them ---

    def finish_reloading(
        self, found: LoadedGroup, now_ms: int, min_generation: int = 0
    ) -> list[Effect]:
        """Restore one group, like `finish_loading`. Without a record and offsets it is gone."""
        group_id, effects = found.group_id, list[Effect]()
        if found.record is not None or found.offsets or found.pending:
            effects = self._restore(found, now_ms, min_generation)
            if group_id not in self.offsets:
                self.offsets[group_id] = CommittedOffsets(found.offsets)
                self.pending.loaded(group_id, found.pending)
        else:
            self.offsets.pop(group_id, None)
        self._reloading.discard(group_id)
        return effects

    def use_config(self, config: GroupConfig) -> None:
        """Apply other limits from now on. Parked requests and armed timers keep theirs."""
        self.config = config
        for group in self.by_id.values():
            group.config = config

    # --- events ---

    def handle(self, group_id: str, event: Event, now_ms: int) -> list[Effect]:
        group = self.by_id.get(group_id)
        if group is not None and group_id:
            # Groups in `by_id` are loaded and ours: no need to hash the id for its slot.
            return self._handle(group, event, now_ms)
        if isinstance(event, TimerFired | Persisted | Assigned | Resolved | TopicsChanged):
            return [] if group is None else self._handle(group, event, now_ms)
        error = self._unavailable(group_id, event)
        if error is not None:
            return [Reply(event.call, error)]
        if group is not None:
            return self._handle(group, event, now_ms)
        return self._handle_unknown(group_id, event, now_ms)

    def heartbeat(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation_id: int,
        now_ms: int,
    ) -> ErrorCode:
        """Handle a Heartbeat. It is the most frequent group request, so it has no event and no
        effects."""
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self.by_id.get(group_id)
        if isinstance(group, Group):
            return sessions.heartbeat(group, member_id, instance_id, generation_id, now_ms)
        if isinstance(group, ConsumerGroup):
            return classic_members.heartbeat(group, member_id, instance_id, generation_id, now_ms)
        error = self.availability(group_id)
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return ErrorCode.NONE  # no member may lose its session because its group is loading
        return ErrorCode.UNKNOWN_MEMBER_ID if error is ErrorCode.NONE else error

    def rests(self, group_id: str, member_id: str, epoch: int, now_ms: int) -> Resting | None:
        """Handle a ConsumerGroupHeartbeat that says nothing new, of a member that has its whole
        target: move its deadline. Returns None if the request needs to be processed as an event."""
        group = self.by_id.get(group_id)
        if not isinstance(group, ConsumerGroup):
            return None
        member = group.members.get(member_id)
        if (
            member is None
            or member.rests_at != group.target_epoch
            or member.epoch != epoch
            or member.sent is not member.assigned
            or member_id in group.unsaved
        ):
            return None
        limits = group.limits
        member.session_deadline_ms = now_ms + limits.session_timeout_ms
        return member, limits.heartbeat_interval_ms

    def concerned(self) -> list[str]:
        """Return the ids of groups that depend on topics. Each is to get a `TopicsChanged`."""
        return [name for name, group in self.by_id.items() if isinstance(group, ModernCore)]

    # --- offsets ---

    def check_commit(self, group_id: str, committer: Committer, now_ms: int) -> ErrorCode:
        """Check whether offsets may be stored; see `commits`.

        If so, call `commit_begins`, write, then call `committed` or `commit_failed`. Nothing may be
        awaited before the write, or a member that is fenced meanwhile could still commit.
        """
        group = self.by_id.get(group_id)
        if group is None:
            error = self.availability(group_id)
            if error is not ErrorCode.NONE:
                return error
            return commits.check_unknown_group(committer)
        return group.check_commit(committer, now_ms)

    def check_fetch(self, group_id: str, member_id: str | None, epoch: int) -> ErrorCode:
        """Check OffsetFetch from v9 on, which carries a member epoch."""
        group = self.by_id.get(group_id)
        return ErrorCode.NONE if group is None else group.check_fetch(member_id, epoch)

    def commit_begins(self, group_id: str, partitions: Iterable[TopicPartition]) -> int:
        """Announce that these offsets are being stored. Until the outcome is known, neither they
        nor the group may expire: otherwise an acknowledged commit could be removed.

        Returns the order of the commit, which tells which transactional offsets were sent before
        it.
        """
        self._in_progress.begins(group_id, partitions)
        return self.pending.next_order()

    def commit_failed(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Report that the commit announced by `commit_begins` failed."""
        self._in_progress.ended(group_id, partitions)

    def committed(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        now_ms: int,
        order: int,
    ) -> list[Effect]:
        """Report that these offsets are stored. A simple consumer's first commit creates its group.

        Offsets must be written over the connection that carries the group's own writes, so that
        commits and deletions are reported here in the order in which the store ran them.
        """
        self._in_progress.ended(group_id, offsets)
        effects: list[Effect] = []
        if group_id not in self.offsets:
            if self.availability(group_id) is not ErrorCode.NONE:
                return []  # unloaded meanwhile: the worker that loads the group finds them
            effects = self._create(group_id, now_ms)
        group_offsets = self.offsets[group_id]
        group_offsets.apply(offsets)
        if group_offsets.pending:
            for partition in offsets:
                group_offsets.pending.overtake(partition, order)
        return effects

    def txn_commit_begins(
        self,
        group_id: str,
        producer_id: int,
        number: int,
        offsets: Mapping[TopicPartition, CommittedOffset],
    ) -> PendingCommit:
        """Like `commit_begins`, for offsets of an open transaction."""
        self.commit_begins(group_id, offsets)
        return self.pending.begins(group_id, producer_id, number, offsets)

    def txn_commit_ended(
        self, group_id: str, commit: PendingCommit, now_ms: int, *, may_be_stored: bool
    ) -> list[Effect]:
        """Report that the offsets of `txn_commit_begins` are, or may be, pending; or were
        refused."""
        self._in_progress.ended(group_id, commit.partitions)
        effects: list[Effect] = []
        is_new = group_id not in self.offsets and self.availability(group_id) is ErrorCode.NONE
        if may_be_stored and is_new:
            effects = self._create(group_id, now_ms)
        self.pending.ends(group_id, commit, may_be_stored=may_be_stored)
        return effects

    def expired_offsets(self, group_id: str, now_ms: int) -> list[TopicPartition]:
        """Return the offsets to remove from the store, then from `offsets`."""
        group = self.by_id.get(group_id)
        if group is None:
            return []
        in_progress = self._in_progress.of(group_id)
        expired = commits.expired_offsets(group, self.offsets[group_id], now_ms)
        return [partition for partition in expired if partition not in in_progress]

    def is_forgettable(self, group_id: str) -> bool:
        """True if nothing is left of the group and no commit is in progress: `Delete` can end
        it."""
        group = self.by_id.get(group_id)
        if group is None or group_id in self._in_progress:
            return False
        return commits.is_forgettable(group, self.offsets[group_id])

    # --- groups ---

    def describe(self, group_id: str) -> views.GroupView:
        group = self.by_id.get(group_id)
        return views.describe_unknown(group_id) if group is None else group.describe()

    def describe_consumers(self, group_id: str) -> views.ConsumerGroupView | None:
        """Return None if there is no such group of the consumer protocol."""
        group = self.by_id.get(group_id)
        if not isinstance(group, ConsumerGroup) or group.state is GroupState.DEAD:
            return None
        return group.describe_consumers()

    def describe_share(self, group_id: str) -> views.ShareGroupView | None:
        """Return None if there is no such share group."""
        group = self.by_id.get(group_id)
        if not isinstance(group, ShareGroup) or group.state is GroupState.DEAD:
            return None
        return group.describe_share()

    def _handle(self, group: GroupBase, event: Event, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        if isinstance(event, group.converted_by):
            group, effects = conversion.for_member(group, event, self._topics, now_ms)
            self.put(group.group_id, group)
            if type(event) not in group.handlers:
                return [Reply(event.call, refuse_other_protocol(group, event))]
        effects += group.handle(event, now_ms)
        if isinstance(group, ConsumerGroup) and group.becomes_classic:
            group, converted = conversion.downgrade(group, now_ms)
            self.put(group.group_id, group)
            # The conversion replaces everything that the group wanted stored.
            effects = [one for one in effects if type(one) is not Persist] + converted
        if group.is_gone:
            self._drop(group.group_id)
        return effects

    def _create(self, group_id: str, now_ms: int) -> list[Effect]:
        group, effects = Group.create(group_id, self.config, self._ids, now_ms)
        group.min_generation = self._min_generation_of_new(group_id, now_ms)
        self.put(group_id, group)
        self.offsets[group_id] = CommittedOffsets()
        return effects

    def _create_modern_group(
        self, group_id: str, event: ConsumerHeartbeat | ShareHeartbeat, now_ms: int
    ) -> None:
        """The group is stored together with its first member."""
        identity = self._ids.identity(now_ms)
        kind = ShareGroup if isinstance(event, ShareHeartbeat) else ConsumerGroup
        group = kind(group_id, identity, self.config, self._ids, now_ms, self._topics)
        group.min_epoch = self._min_generation_of_new(group_id, now_ms)
        self.put(group_id, group)
        self.offsets[group_id] = CommittedOffsets()

    def _min_generation_of_new(self, group_id: str, now_ms: int) -> int:
        """Return 0, unless the store may just have lost a group with this id."""
        until_ms, lowest = self._patient.get(self._slot_of(group_id), (0, 0))
        return lowest if now_ms < until_ms else 0

    def _drop(self, group_id: str) -> None:
        self.drop(group_id)
        del self.offsets[group_id]

    def _unavailable(self, group_id: str, event: Request) -> Answer | None:
        if not group_id and not isinstance(event, Delete):
            return refuse(event, ErrorCode.INVALID_GROUP_ID)
        error = self.availability(group_id)
        if error is ErrorCode.NONE:
            return None
        if isinstance(event, Sync) and error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            # Java's client treats the other code as fatal. The rebalance is lost, so members join
            # again.
            error = ErrorCode.REBALANCE_IN_PROGRESS
        return refuse(event, error)

    def _handle_unknown(self, group_id: str, event: Request, now_ms: int) -> list[Effect]:
        if isinstance(event, Join) and not event.member_id:
            error = join.check_request(self.config, event)
            if error is not ErrorCode.NONE:
                return [Reply(event.call, refuse(event, error))]
            effects = self._create(group_id, now_ms)
            return effects + self._handle(self.by_id[group_id], event, now_ms)
        if isinstance(event, ConsumerHeartbeat | ShareHeartbeat):
            if event.epoch == 0:
                self._create_modern_group(group_id, event, now_ms)
                return self._handle(self.by_id[group_id], event, now_ms)
            if event.epoch > 0 and self._min_generation_of_new(group_id, now_ms):
                return [Reply(event.call, refuse(event, ErrorCode.UNKNOWN_MEMBER_ID))]
        return [Reply(event.call, answer_absent(self.config, group_id, event))]
