"""The groups of one worker by id, and what is answered for unknown, loading and foreign ones.

No I/O: the coordinator says which slots the worker owns and what was found in the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeAlias

from moldau.broker.errors import ErrorCode
from moldau.broker.group import commits, views
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
    Sync,
    TopicsChanged,
)
from moldau.broker.group.loading import LoadedGroup, restore
from moldau.broker.group.machine import Machine
from moldau.broker.group.modern import convert, guests
from moldau.broker.group.modern.group import ConsumerGroup
from moldau.broker.group.modern.members import Member
from moldau.broker.group.offsets import (
    CommittedOffset,
    CommittedOffsets,
    TopicPartition,
)
from moldau.broker.group.pending import Pending, PendingCommit
from moldau.broker.group.states import GroupState
from moldau.broker.group.topics import NO_TOPICS, TopicsSeen
from moldau.broker.group.unknown import answer_unknown, not_of_this_kind, refuse
from moldau.broker.machine.effects import Persisted, Reply, TimerFired
from moldau.broker.machine.slot_table import SlotTable

Resting: TypeAlias = tuple[Member, int]
"""A member that has nothing to ask for, and its heartbeat interval."""


class Groups(SlotTable[Machine]):
    """A group belongs to the slot of its id."""

    def __init__(
        self,
        config: GroupConfig,
        ids: IdGenerator,
        slot_of: Callable[[str], int],
        topics: TopicsSeen = NO_TOPICS,
    ) -> None:
        super().__init__(slot_of)
        self.config = config
        self._ids = ids
        self._topics = topics
        self._patient: dict[int, tuple[int, int]] = {}
        """By slot: until when, and the floor of generations."""
        self.offsets: dict[str, CommittedOffsets] = {}
        """The offsets of every group in `by_id`, and of those that are being loaded again."""
        self.pending = Pending(self.offsets, slot_of)
        self._in_progress = commits.InProgress()

    # --- slots ---

    def finish_loading(
        self, slot: int, stored: Iterable[LoadedGroup], now_ms: int, generation_floor: int = 0
    ) -> list[Effect]:
        """The groups are restored as they were; only sessions start again.

        `generation_floor`: where their next generations begin, if the store may have lost some.
        """
        effects: list[Effect] = []
        for found in stored:
            self.offsets[found.group_id] = CommittedOffsets(found.offsets)
            self.pending.loaded(found.group_id, found.pending)
            restore_it = partial(self._restore, found, now_ms, generation_floor)
            effects += self.guarded(found.group_id, restore_it)
        self._finish_loading(slot)
        if generation_floor:
            # The store has lost something: members of a group that went along join again instead
            # of giving up, and not in a generation that they have seen.
            until_ms = now_ms + self.config.consumer.limits.session_timeout_ms
            self._patient[slot] = until_ms, generation_floor
        return effects

    def _restore(self, found: LoadedGroup, now_ms: int, generation_floor: int) -> list[Effect]:
        group: Machine
        if found.record is None:
            group, effects = Group.create(found.group_id, self.config, self._ids, now_ms)
        else:
            group, effects = restore(
                found.record,
                found.members,
                self.config,
                self._ids,
                self._topics,
                now_ms,
                generation_floor,
            )
        self.put(found.group_id, group)
        return effects

    def give_up(self, slot: int, now_ms: int) -> list[Effect]:
        """Another worker owns the slot from now on, or this one stops."""
        effects: list[Effect] = []
        for group_id in [one for one in self._reloading if self._slot_of(one) == slot]:
            self.offsets.pop(group_id, None)
        for group in self._give_up(slot):
            effects += self.guarded(group.group_id, partial(group.unload, now_ms))
            del self.offsets[group.group_id]
        self.pending.given_up(slot)
        return effects

    # --- groups that failed: their offsets stay, no event changes them ---

    def finish_reloading(
        self, found: LoadedGroup, now_ms: int, generation_floor: int = 0
    ) -> list[Effect]:
        """As `finish_loading`, of one group; without a record and offsets it is gone."""
        group_id, effects = found.group_id, list[Effect]()
        if found.record is not None or found.offsets or found.pending:
            effects = self._restore(found, now_ms, generation_floor)
            if group_id not in self.offsets:
                self.offsets[group_id] = CommittedOffsets(found.offsets)
                self.pending.loaded(group_id, found.pending)
        else:
            self.offsets.pop(group_id, None)
        self._reloading.discard(group_id)
        return effects

    def use_config(self, config: GroupConfig) -> None:
        """Use other limits from now on; parked requests and armed timers keep theirs."""
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
        """Heartbeat: the hottest group request, so neither an event nor an effect."""
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self.by_id.get(group_id)
        if isinstance(group, Group):
            return sessions.heartbeat(group, member_id, instance_id, generation_id, now_ms)
        if isinstance(group, ConsumerGroup):
            return guests.heartbeat(group, member_id, instance_id, generation_id, now_ms)
        error = self.availability(group_id)
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return ErrorCode.NONE  # no member may lose its session because its group is loading
        return ErrorCode.UNKNOWN_MEMBER_ID if error is ErrorCode.NONE else error

    def rests(self, group_id: str, member_id: str, epoch: int, now_ms: int) -> Resting | None:
        """A ConsumerGroupHeartbeat of a member that has all it is to have and says nothing new:
        its deadline moves. None: it has to be looked at."""
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
        """The ids of groups that topics mean something to: pass them a `TopicsChanged` each."""
        return [name for name, group in self.by_id.items() if isinstance(group, ConsumerGroup)]

    # --- offsets ---

    def check_commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation_id: int,
        now_ms: int,
        *,
        version: int = 9,
        places: Iterable[tuple[str | bytes, int]] = (),
        transactional: bool = False,
    ) -> ErrorCode:
        """Whether offsets may be stored; see `commits`.

        If so: `commit_begins`, the write, then `committed` or `commit_failed`. Nothing may be
        awaited before the write, or a member that is fenced in the meantime could still commit.
        """
        group = self.by_id.get(group_id)
        if group is None:
            error = self.availability(group_id)
            if error is not ErrorCode.NONE:
                return error
            return commits.check_unknown_group(
                generation_id,
                knows_group_id_not_found=version >= 9 and not transactional,
            )
        return group.check_commit(
            member_id,
            instance_id,
            generation_id,
            now_ms,
            version=version,
            places=places,
            transactional=transactional,
        )

    def check_fetch(self, group_id: str, member_id: str | None, epoch: int) -> ErrorCode:
        """Whether OffsetFetch from v9 on is answered: a member's epoch is compared."""
        group = self.by_id.get(group_id)
        return ErrorCode.NONE if group is None else group.check_fetch(member_id, epoch)

    def commit_begins(self, group_id: str, partitions: Iterable[TopicPartition]) -> int:
        """These are being stored: until the outcome is known, neither they nor the group may
        expire. Otherwise an acknowledged commit could be removed.

        Returns the order of the commit: which offsets of transactions were sent before it."""
        self._in_progress.begins(group_id, partitions)
        return self.pending.next_order()

    def commit_failed(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """The commit announced by `commit_begins` failed."""
        self._in_progress.ended(group_id, partitions)

    def committed(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        now_ms: int,
        order: int,
    ) -> list[Effect]:
        """These offsets are stored. The first commit of a simple consumer creates its group.

        Offsets must be written over the connection that carries the group's own writes, so that
        commits and deletions are reported here in the order in which the store ran them.
        """
        self._in_progress.ended(group_id, offsets)
        effects: list[Effect] = []
        if group_id not in self.offsets:
            if self.availability(group_id) is not ErrorCode.NONE:
                return []  # unloaded in the meantime: whoever loads it finds them
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
        """As `commit_begins`, for offsets of an open transaction."""
        self.commit_begins(group_id, offsets)
        return self.pending.begins(group_id, producer_id, number, offsets)

    def txn_commit_ended(
        self, group_id: str, commit: PendingCommit, now_ms: int, *, may_be_stored: bool
    ) -> list[Effect]:
        """What `txn_commit_begins` announced is pending now, or may be; or it was refused."""
        self._in_progress.ended(group_id, commit.partitions)
        effects: list[Effect] = []
        is_new = group_id not in self.offsets and self.availability(group_id) is ErrorCode.NONE
        if may_be_stored and is_new:
            effects = self._create(group_id, now_ms)
        self.pending.ends(group_id, commit, may_be_stored=may_be_stored)
        return effects

    def expired_offsets(self, group_id: str, now_ms: int) -> list[TopicPartition]:
        """Offsets to remove from the store, then from `offsets`."""
        group = self.by_id.get(group_id)
        if group is None:
            return []
        in_progress = self._in_progress.of(group_id)
        expired = commits.expired_offsets(group, self.offsets[group_id], now_ms)
        return [partition for partition in expired if partition not in in_progress]

    def is_forgettable(self, group_id: str) -> bool:
        """Nothing is left of the group and no commit is in progress: end it with a `Delete`."""
        group = self.by_id.get(group_id)
        if group is None or group_id in self._in_progress:
            return False
        return commits.is_forgettable(group, self.offsets[group_id])

    # --- groups ---

    def describe(self, group_id: str) -> views.GroupView:
        group = self.by_id.get(group_id)
        return views.describe_unknown(group_id) if group is None else group.describe()

    def describe_consumers(self, group_id: str) -> views.ConsumerGroupView | None:
        """None: there is no such group of the consumer protocol."""
        group = self.by_id.get(group_id)
        if not isinstance(group, ConsumerGroup) or group.state is GroupState.DEAD:
            return None
        return group.describe_consumers()

    def _handle(self, group: Machine, event: Event, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        if isinstance(event, Join | ConsumerHeartbeat):
            known = group
            group, effects = convert.for_member(known, event, self._topics, now_ms)
            if group is not known:
                self.put(group.group_id, group)
            if isinstance(group, Group) and isinstance(event, ConsumerHeartbeat):
                if group.state is GroupState.DEAD:
                    return [Reply(event.call, refuse(event, ErrorCode.COORDINATOR_NOT_AVAILABLE))]
                return [Reply(event.call, not_of_this_kind(group.group_id))]
        effects += group.handle(event, now_ms)
        if isinstance(group, ConsumerGroup) and group.becomes_classic:
            group, converted = convert.downgrade(group, now_ms)
            self.put(group.group_id, group)
            # What it wanted stored is replaced as a whole.
            effects = [one for one in effects if type(one) is not Persist] + converted
        if group.is_gone:
            self._drop(group.group_id)
        return effects

    def _create(self, group_id: str, now_ms: int) -> list[Effect]:
        group, effects = Group.create(group_id, self.config, self._ids, now_ms)
        group.generation_floor = self._floor_of_new(group_id, now_ms)
        self.put(group_id, group)
        self.offsets[group_id] = CommittedOffsets()
        return effects

    def _create_consumer_group(self, group_id: str, now_ms: int) -> None:
        """It is stored with its first member."""
        identity = self._ids.identity(now_ms)
        group = ConsumerGroup(group_id, identity, self.config, self._ids, now_ms, self._topics)
        group.epoch_floor = self._floor_of_new(group_id, now_ms)
        self.put(group_id, group)
        self.offsets[group_id] = CommittedOffsets()

    def _floor_of_new(self, group_id: str, now_ms: int) -> int:
        """0, unless the store may just have lost a group of that id."""
        until_ms, floor = self._patient.get(self._slot_of(group_id), (0, 0))
        return floor if now_ms < until_ms else 0

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
            # Java takes the other code for the end. The rebalance is lost, so they join again.
            error = ErrorCode.REBALANCE_IN_PROGRESS
        return refuse(event, error)

    def _handle_unknown(self, group_id: str, event: Request, now_ms: int) -> list[Effect]:
        if isinstance(event, Join) and not event.member_id:
            error = join.check_request(self.config, event)
            if error is not ErrorCode.NONE:
                return [Reply(event.call, refuse(event, error))]
            effects = self._create(group_id, now_ms)
            return effects + self._handle(self.by_id[group_id], event, now_ms)
        if isinstance(event, ConsumerHeartbeat):
            if event.epoch == 0:
                self._create_consumer_group(group_id, now_ms)
                return self._handle(self.by_id[group_id], event, now_ms)
            if event.epoch > 0 and self._floor_of_new(group_id, now_ms):
                return [Reply(event.call, refuse(event, ErrorCode.UNKNOWN_MEMBER_ID))]
        return [Reply(event.call, answer_unknown(self.config, group_id, event))]
