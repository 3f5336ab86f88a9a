"""The groups of one worker by id, and what is answered for unknown, loading and foreign ones.

No I/O: the coordinator says which slots the worker owns and what was found in the store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from broker.errors import ErrorCode
from broker.group import commits, views
from broker.group.classic import join, sessions
from broker.group.classic.group import Group
from broker.group.config import GroupConfig, IdGenerator
from broker.group.effects import (
    Answer,
    DeleteAnswer,
    Effect,
    JoinAnswer,
    LeaveAnswer,
    LeftMember,
    Reply,
    SyncAnswer,
)
from broker.group.events import (
    Delete,
    Event,
    Join,
    Leave,
    Persisted,
    Request,
    Sync,
    TimerFired,
)
from broker.group.offsets import (
    CommittedOffset,
    CommittedOffsets,
    PendingOffset,
    TopicPartition,
)
from broker.group.pending import Pending, PendingCommit
from broker.group.record import GroupRecord
from broker.slotted import Slotted


class LoadedGroup(Struct, frozen=True):
    """A group from the store. Without a record: only simple consumers committed offsets."""

    group_id: str
    record: GroupRecord | None
    offsets: Mapping[TopicPartition, CommittedOffset]
    pending: Mapping[int, Mapping[TopicPartition, PendingOffset]] = {}
    """By producer id: of open transactions."""


class Groups(Slotted[Group]):
    """A group belongs to the slot of its id."""

    def __init__(
        self, config: GroupConfig, ids: IdGenerator, slot_of: Callable[[str], int]
    ) -> None:
        super().__init__(slot_of)
        self.config = config
        self._ids = ids
        self.offsets: dict[str, CommittedOffsets] = {}
        """The offsets of every group in `by_id`."""
        self.pending = Pending(self.offsets, slot_of)
        self._in_progress: dict[str, Counter[TopicPartition]] = {}
        """Partitions of commits in progress, also for groups that do not exist yet."""

    # --- slots ---

    def finish_loading(
        self, slot: int, stored: Iterable[LoadedGroup], now_ms: int, generation_floor: int = 0
    ) -> list[Effect]:
        """The groups are restored as they were; only sessions start again.

        `generation_floor`: where their next generations begin, if the store may have lost some.
        """
        effects: list[Effect] = []
        for found in stored:
            if found.record is None:
                effects += self._create(found.group_id, now_ms)
            else:
                group, armed = Group.restore(
                    found.record, self.config, self._ids, now_ms, generation_floor
                )
                self.put(found.group_id, group)
                effects += armed
            self.offsets[found.group_id] = CommittedOffsets(found.offsets)
            self.pending.loaded(found.group_id, found.pending)
        self._finish_loading(slot)
        return effects

    def give_up(self, slot: int, now_ms: int) -> list[Effect]:
        """Another worker owns the slot from now on, or this one stops."""
        effects: list[Effect] = []
        for group in self._give_up(slot):
            effects += group.unload(now_ms)
            del self.offsets[group.group_id]
        self.pending.given_up(slot)
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
        if isinstance(event, TimerFired | Persisted):
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
        if group is not None:
            return sessions.heartbeat(group, member_id, instance_id, generation_id, now_ms)
        error = self.availability(group_id)
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return ErrorCode.NONE  # no member may lose its session because its group is loading
        return ErrorCode.UNKNOWN_MEMBER_ID if error is ErrorCode.NONE else error

    # --- offsets ---

    def check_commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation_id: int,
        now_ms: int,
        *,
        knows_group_id_not_found: bool = True,
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
                generation_id, knows_group_id_not_found=knows_group_id_not_found
            )
        return commits.check_commit(
            group, member_id, instance_id, generation_id, now_ms, transactional=transactional
        )

    def commit_begins(self, group_id: str, partitions: Iterable[TopicPartition]) -> int:
        """These are being stored: until the outcome is known, neither they nor the group may
        expire. Otherwise an acknowledged commit could be removed.

        Returns the order of the commit: which offsets of transactions were sent before it."""
        in_progress = self._in_progress.setdefault(group_id, Counter())
        for partition in partitions:
            in_progress[partition] += 1
        return self.pending.next_order()

    def commit_failed(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """The commit announced by `commit_begins` failed."""
        self._commit_ended(group_id, partitions)

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
        self._commit_ended(group_id, offsets)
        if self.availability(group_id) is not ErrorCode.NONE:
            return []  # unloaded in the meantime: the new owner loads them
        effects = [] if group_id in self.by_id else self._create(group_id, now_ms)
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
        self._commit_ended(group_id, commit.partitions)
        effects: list[Effect] = []
        if may_be_stored and self.availability(group_id) is ErrorCode.NONE:
            effects = [] if group_id in self.by_id else self._create(group_id, now_ms)
        self.pending.ends(group_id, commit, may_be_stored=may_be_stored)
        return effects

    def _commit_ended(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        in_progress = self._in_progress.get(group_id)
        if in_progress is None:
            return
        for partition in partitions:
            in_progress[partition] -= 1
            if in_progress[partition] <= 0:
                del in_progress[partition]
        if not in_progress:
            del self._in_progress[group_id]

    def expired_offsets(self, group_id: str, now_ms: int) -> list[TopicPartition]:
        """Offsets to remove from the store, then from `offsets`."""
        group = self.by_id.get(group_id)
        if group is None:
            return []
        in_progress = self._in_progress.get(group_id, ())
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
        return views.describe_unknown(group_id) if group is None else views.describe(group)

    def _handle(self, group: Group, event: Event, now_ms: int) -> list[Effect]:
        effects = group.handle(event, now_ms)
        if group.is_gone:
            self._drop(group.group_id)
        return effects

    def _create(self, group_id: str, now_ms: int) -> list[Effect]:
        group, effects = Group.create(group_id, self.config, self._ids, now_ms)
        self.put(group_id, group)
        self.offsets[group_id] = CommittedOffsets()
        return effects

    def _drop(self, group_id: str) -> None:
        self.drop(group_id)
        del self.offsets[group_id]

    def _unavailable(self, group_id: str, event: Request) -> Answer | None:
        if not group_id and not isinstance(event, Delete):
            return refuse(event, ErrorCode.INVALID_GROUP_ID)
        error = self.availability(group_id)
        if error is ErrorCode.NONE:
            return None
        return refuse(event, error)

    def _handle_unknown(self, group_id: str, event: Request, now_ms: int) -> list[Effect]:
        match event:
            case Join(member_id=""):
                error = join.check_request(self.config, event)
                if error is not ErrorCode.NONE:
                    return [Reply(event.call, refuse(event, error))]
                effects = self._create(group_id, now_ms)
                return effects + self._handle(self.by_id[group_id], event, now_ms)
            case Join():
                error = join.check_request(self.config, event)
                if error is not ErrorCode.INVALID_SESSION_TIMEOUT:
                    error = ErrorCode.UNKNOWN_MEMBER_ID
                answer: Answer = refuse(event, error)
            case Leave():
                answer = LeaveAnswer(
                    ErrorCode.NONE,
                    tuple(
                        LeftMember(one.member_id, one.instance_id, ErrorCode.UNKNOWN_MEMBER_ID)
                        for one in event.members
                    ),
                )
            case Delete():
                answer = DeleteAnswer(ErrorCode.GROUP_ID_NOT_FOUND)
            case Sync():
                answer = refuse(event, ErrorCode.UNKNOWN_MEMBER_ID)
        return [Reply(event.call, answer)]


def refuse(event: Request, error: ErrorCode) -> Answer:
    """The answer to a request that fails as a whole."""
    match event:
        case Join():
            return JoinAnswer(error, event.member_id)
        case Sync():
            return SyncAnswer(error)
        case Leave():
            return LeaveAnswer(error)
        case Delete():
            return DeleteAnswer(error)
