"""Committed offsets of groups, stored first and then applied in memory; and those of open
transactions: TxnOffsetCommit stores them as pending, markers end them.

**No pending offset outlives its marker.** A TxnOffsetCommit is announced (`in_progress`) before the
coordinator of its transaction is asked. The coordinator answers with the number n only while
transaction n is open, so marker n arrives here after the announcement. If it arrives before the
offsets are sent to the store, it is noted, and the offsets are refused. If it arrives later, it is
behind them on the same connection, and ends them. If the slot was taken again in between, it may
have had another owner, and the marker may have gone there: then the offsets are refused too, and
the client retries.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from moldau.broker.coordinator.groups.serialization import (
    decode_offset,
    encode_offset,
    encode_pending,
    offset_field,
    pending_field,
)
from moldau.broker.coordinator.runtime.runtime import REACQUIRE_PATIENCE_S
from moldau.broker.errors import (
    ErrorCode,
    KafkaError,
    SlotNotTaken,
    StoreFault,
    StoreFenced,
    StoreRefused,
)
from moldau.broker.group.offsets import CommittedOffset, TopicPartition
from moldau.broker.group.pending_offsets import ANY_NUMBER, Ended
from moldau.broker.group.states import GroupState
from moldau.broker.log.callbacks import await_callback
from moldau.broker.placement import slot_of
from moldau.broker.store.groups import GroupStore

if TYPE_CHECKING:
    from moldau.broker.coordinator.groups.coordinator import GroupCoordinator

logger = logging.getLogger("moldau.coordinator")


class GroupOffsets:
    def __init__(self, coordinator: GroupCoordinator, store: GroupStore) -> None:
        self._coordinator = coordinator
        self._groups = coordinator.groups
        self._slots = coordinator.slots
        self._store = store
        self.commit_counts: dict[str, int] | None = None  # by group id, for group events
        # Called before offsets of a group without members are moved or removed by somebody else,
        # and whether any of them goes back: group events keep the offsets from before.
        self.on_moving: Callable[[str, bool], None] | None = None

    async def commit(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> None:
        """Store offsets that `groups.check_commit` has just allowed, then apply them. Raises
        StoreFault."""
        slot = slot_of(group_id)
        if self._slots.is_stale(slot):
            raise SlotNotTaken(f"slot {slot} is being written again")
        fields = {offset_field(place): encode_offset(value) for place, value in offsets.items()}
        if self.on_moving is not None and self._has_no_members(group_id):
            known = self._groups.offsets[group_id]
            back = any(
                (before := known.get(*place)) is not None and value.offset < before.offset
                for place, value in offsets.items()
            )
            self.on_moving(group_id, back)
        overtaken = [pending_field(*one) for one in self._groups.pending.at(group_id, offsets)]
        order = self._groups.commit_begins(group_id, offsets)
        try:
            await self._store.save_offsets(slot, group_id, fields, overtaken)
        except BaseException as fault:
            self._groups.commit_failed(group_id, offsets)
            if isinstance(fault, StoreFenced):
                self._slots.fenced(slot)
            raise
        now_ms = self._coordinator.now_ms()
        self._coordinator.run(self._groups.committed(group_id, offsets, now_ms, order))
        self.count_commit(group_id)

    def _has_no_members(self, group_id: str) -> bool:
        group = self._groups.by_id.get(group_id)
        return group is not None and group.state is GroupState.EMPTY

    def count_commit(self, group_id: str) -> None:
        if self.commit_counts is not None:
            self.commit_counts[group_id] = self.commit_counts.get(group_id, 0) + 1

    async def drop(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Remove committed offsets, and those that open transactions would commit."""
        dropped = list(partitions)
        slot = slot_of(group_id)
        if self.on_moving is not None and dropped:
            self.on_moving(group_id, True)
        offsets = self._groups.offsets.get(group_id)
        while True:
            await self._slots.wait_reacquired(REACQUIRE_PATIENCE_S)
            if self._groups.offsets.get(group_id) is not offsets:
                raise StoreFenced(f"the slot of group {group_id} was given up")
            pending = self._groups.pending.at(group_id, dropped)
            fields = [*map(offset_field, dropped), *(pending_field(*one) for one in pending)]
            try:
                await self._store.drop_offsets(slot, group_id, fields)
            except StoreFenced:
                self._slots.fenced(slot)
            else:
                break
        if offsets is not None:
            for partition in dropped:
                offsets.remove(*partition)
            for place in pending:
                offsets.pending.remove(*place)

    def note_removal(self, group_id: str) -> None:
        """Report that the group is about to be deleted."""
        if self.on_moving is not None and self._has_no_members(group_id):
            self.on_moving(group_id, True)

    def topics(self) -> set[str]:
        """All topics with an offset that is committed, or that a transaction would commit."""
        found: set[str] = set()
        for offsets in self._groups.offsets.values():
            found.update(offsets.topics())
            found.update(partition.topic for partition in offsets.pending.partitions())
        return found

    async def topic_deleted(self, topic: str) -> None:
        """Remove the offsets of a deleted topic."""
        for group_id, offsets in list(self._groups.offsets.items()):
            if partitions := offsets.of_topic(topic):
                await self.drop(group_id, partitions)

    async def expire(self) -> None:
        """Remove offsets past their retention, and groups of which nothing is left."""
        for group_id in list(self._groups.by_id):
            expired = self._groups.expired_offsets(group_id, self._coordinator.now_ms())
            if expired:
                logger.info("group %s: %d offsets expired", group_id, len(expired))
                await self.drop(group_id, expired)
            # However the last offset went: expiry, OffsetDelete, or the deletion of its topic.
            if self._groups.is_forgettable(group_id):
                await self._coordinator.delete(group_id)


Written = Callable[[StoreFault | None], None]
Committed = Callable[[str, Mapping[TopicPartition, CommittedOffset]], None]


class OffsetCommitInProgress:
    """A TxnOffsetCommit from before its transaction's coordinator is asked until it is stored."""

    def __init__(self, group_id: str, slot: int, producer_id: int, epoch: int) -> None:
        self.group_id = group_id
        self.slot = slot
        self.producer_id = producer_id
        self.epoch = epoch  # under which the slot is held
        self.ended: set[int] = set()  # transactions of the producer whose marker came since


class TransactionalOffsets:
    def __init__(self, coordinator: GroupCoordinator, store: GroupStore) -> None:
        self._coordinator = coordinator
        self._groups = coordinator.groups
        self._slots = coordinator.slots
        self._store = store
        self._in_progress: dict[tuple[int, int], list[OffsetCommitInProgress]] = {}
        """The commits by slot and producer id."""
        # Called with a callback: it has to be called once the store's replicas have all offsets.
        self.when_replicated: Callable[[Written], None] | None = None
        # Called with the offsets that a transaction has committed.
        self.on_committed: Committed | None = None

    @contextmanager
    def in_progress(self, group_id: str, producer_id: int) -> Iterator[OffsetCommitInProgress]:
        """Around the question to the transaction's coordinator, and `commit`."""
        slot = slot_of(group_id)
        one = OffsetCommitInProgress(group_id, slot, producer_id, self._store.held(slot))
        those = self._in_progress.setdefault((slot, producer_id), [])
        those.append(one)
        try:
            yield one
        finally:
            those.remove(one)
            if not those:
                del self._in_progress[slot, producer_id]

    async def commit(
        self,
        asked: OffsetCommitInProgress,
        number: int,
        offsets: Mapping[TopicPartition, CommittedOffset],
    ) -> None:
        """Store offsets as pending that `groups.check_commit` has just allowed and the coordinator
        let into transaction `number`. Raises StoreFault, or KafkaError if that has ended.

        Nothing is awaited before the write.
        """
        group_id, slot, producer_id = asked.group_id, asked.slot, asked.producer_id
        if number in asked.ended:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, f"transaction {number} has ended")
        if self._slots.is_stale(slot) or self._store.held(slot) != asked.epoch:
            raise SlotNotTaken(f"slot {slot} is being taken, or written again")
        commit = self._groups.txn_commit_begins(group_id, producer_id, number, offsets)
        fields = {
            pending_field(producer_id, partition): encode_pending(pending)
            for partition, pending in commit.offsets.items()
        }
        may_be_stored = True
        try:
            await self._store.save_offsets(slot, group_id, fields)
        except StoreRefused as fault:
            may_be_stored = False
            if isinstance(fault, StoreFenced):
                self._slots.fenced(slot)
            raise
        finally:
            effects = self._groups.txn_commit_ended(
                group_id, commit, self._coordinator.now_ms(), may_be_stored=may_be_stored
            )
            self._coordinator.run(effects)
        if self.when_replicated is not None:
            # The decision is replicated too. It must not survive a failover without its offsets:
            # they would be read, and written, a second time.
            await await_callback(self.when_replicated)

    async def end(
        self, slot: int, producer_id: int, producer_epoch: int, number: int, commit: bool
    ) -> None:
        """A marker. What it says is done when it returns; it may come more than once.

        Raises StoreFault: then some of it may have been done.
        """
        for each in self._in_progress.get((slot, producer_id), ()):
            each.ended.add(number)
        self._check(slot)
        for group_id in self._groups.pending.groups_of(slot, producer_id):
            await self._end(slot, group_id, producer_id, number, commit=commit)
            if number == ANY_NUMBER:
                logger.warning(
                    "group %s: an administrator's marker has %s the offsets of producer %d, "
                    "epoch %d",
                    group_id,
                    "committed" if commit else "aborted",
                    producer_id,
                    producer_epoch,
                )

    def _check(self, slot: int) -> None:
        """Raises StoreFault unless this worker knows the pending offsets of the slot."""
        availability = self._groups.availability_of_slot(slot)
        if availability is ErrorCode.NOT_COORDINATOR:
            raise StoreFenced(f"slot {slot} belongs to another worker")
        if availability is not ErrorCode.NONE or self._slots.is_stale(slot):
            raise SlotNotTaken(f"slot {slot} is being loaded, or written again")

    async def _end(
        self, slot: int, group_id: str, producer_id: int, number: int, *, commit: bool
    ) -> None:
        self._check(slot)  # again, for each group that is waited for
        concerned = self._groups.pending.to_end(group_id, producer_id, number)
        rows = [
            (
                offset_field(partition),
                pending_field(producer_id, partition),
                [pending_field(other, partition) for other in others],
            )
            for partition, others in concerned.items()
        ]
        try:
            replies = await self._store.end_offsets(slot, group_id, number, rows, commit=commit)
        except StoreFenced:
            self._slots.fenced(slot)
            raise
        outcome = {
            partition: Ended(order, None if value is None else decode_offset(value))
            for partition, (order, value) in zip(concerned, replies, strict=True)
        }
        self._groups.pending.ended(group_id, producer_id, number, outcome)
        committed = {
            partition: ended.committed
            for partition, ended in outcome.items()
            if ended.committed is not None
        }
        if commit and committed and self.on_committed is not None:
            self.on_committed(group_id, committed)
        if any(ended.order for ended in outcome.values()):
            self._coordinator.offsets.count_commit(group_id)
