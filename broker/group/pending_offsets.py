"""The offsets of open transactions in all groups of a worker: which are being stored, which groups
a producer's marker concerns, and the effects of a marker.

**Order.** An offset that OffsetCommit commits later stays, whatever the transaction's outcome. Of
two transactions, the one that sent its offset later wins. Therefore everything that is sent to the
store gets the next number of one sequence. The store executes in this order, and decides: a commit
empties the pending offsets that it overtakes, and a marker commits those that are not empty. This
module mirrors what the store is known to hold: requests look at the mirror, and it is written again
if the store loses its data.

A TxnOffsetCommit whose outcome is unknown counts as stored: it may be in the store, and only the
marker of its transaction would remove it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct

from moldau.broker.group.offsets import (
    CommittedOffset,
    CommittedOffsets,
    PendingOffset,
    TopicPartition,
)

ANY_NUMBER = -1
"""The number in an administrator's marker, which ends whichever transaction is open."""


class PendingKey(NamedTuple):
    """The key under which one pending offset is stored."""

    producer_id: int
    partition: TopicPartition


class PendingCommit(Struct):
    """A TxnOffsetCommit that is being stored."""

    producer_id: int
    partitions: tuple[TopicPartition, ...]
    offsets: dict[TopicPartition, PendingOffset]
    """The offsets, without those whose transaction has ended since."""


class Ended(NamedTuple):
    """What a marker did to one partition."""

    order: int
    """The order of the offset that the marker committed; 0 if it was aborted, overtaken or gone."""
    committed: CommittedOffset | None
    """What the store has now, from whichever commit."""


class Pending:
    def __init__(
        self, offsets: Mapping[str, CommittedOffsets], slot_of: Callable[[str], int]
    ) -> None:
        self._offsets = offsets  # of each group
        self._slot_of = slot_of
        self._order = 0
        self._sent: dict[str, list[PendingCommit]] = {}
        """The commits by group id, including those of groups that do not exist yet."""
        self._groups: dict[int, dict[int, set[str]]] = {}
        """The groups that may have offsets of an open transaction, by slot and producer id."""

    def next_order(self) -> int:
        self._order += 1
        return self._order

    # --- groups that come and go ---

    def loaded(
        self, group_id: str, pending: Mapping[int, Mapping[TopicPartition, PendingOffset]]
    ) -> None:
        """Add the pending offsets that the store has of a group that has been created."""
        for producer_id, offsets in pending.items():
            self._offsets[group_id].pending.add(producer_id, offsets)
            self._order = max(self._order, *(one.order for one in offsets.values()))
            self._note(group_id, producer_id)

    def given_up(self, slot: int) -> None:
        self._groups.pop(slot, None)

    def _note(self, group_id: str, producer_id: int) -> None:
        producers = self._groups.setdefault(self._slot_of(group_id), {})
        producers.setdefault(producer_id, set()).add(group_id)

    # --- TxnOffsetCommit ---

    def begins(
        self,
        group_id: str,
        producer_id: int,
        number: int,
        offsets: Mapping[TopicPartition, CommittedOffset],
    ) -> PendingCommit:
        """Announce a TxnOffsetCommit that is being sent to the store."""
        order = self.next_order()
        commit = PendingCommit(
            producer_id,
            tuple(offsets),
            {
                partition: PendingOffset(number, order, value)
                for partition, value in offsets.items()
            },
        )
        self._sent.setdefault(group_id, []).append(commit)
        self._note(group_id, producer_id)
        return commit

    def ends(self, group_id: str, commit: PendingCommit, *, may_be_stored: bool) -> None:
        sent = self._sent[group_id]
        sent.remove(commit)
        if not sent:
            del self._sent[group_id]
        offsets = self._offsets.get(group_id)
        if may_be_stored and offsets is not None:
            offsets.pending.add(commit.producer_id, commit.offsets)
        self._forget_if_over(group_id, commit.producer_id)

    # --- OffsetCommit, OffsetDelete ---

    def at(self, group_id: str, partitions: Iterable[TopicPartition]) -> list[PendingKey]:
        """Return every pending offset of these partitions that the store may have."""
        if not self._groups:
            return []
        wanted = set(partitions)
        found = {
            PendingKey(commit.producer_id, partition)
            for commit in self._sent.get(group_id, ())
            for partition in wanted & commit.offsets.keys()
        }
        offsets = self._offsets.get(group_id)
        if offsets is not None and offsets.pending:
            for partition in wanted:
                producers = offsets.pending.producers(partition)
                found.update(PendingKey(producer_id, partition) for producer_id in producers)
        return sorted(found)

    # --- markers ---

    def groups_of(self, slot: int, producer_id: int) -> list[str]:
        """Return the groups that a marker of this producer may concern."""
        return sorted(self._groups.get(slot, {}).get(producer_id, ()))

    def to_end(
        self, group_id: str, producer_id: int, number: int
    ) -> dict[TopicPartition, list[int]]:
        """Return the partitions that a marker concerns, and the other producers with offsets of
        them."""
        partitions = {
            partition
            for commit in self._sent_by(group_id, producer_id)
            for partition, pending in commit.offsets.items()
            if is_meant(pending, number)
        }
        offsets = self._offsets.get(group_id)
        if offsets is not None:
            found = offsets.pending.of(producer_id).items()
            partitions.update(
                partition for partition, pending in found if is_meant(pending, number)
            )
        concerned: dict[TopicPartition, list[int]] = {one: [] for one in sorted(partitions)}
        for key in self.at(group_id, partitions):
            if key.producer_id != producer_id:
                concerned[key.partition].append(key.producer_id)
        return concerned

    def ended(
        self,
        group_id: str,
        producer_id: int,
        number: int,
        outcome: Mapping[TopicPartition, Ended],
    ) -> None:
        """Apply a marker that the store has applied."""
        for commit in self._sent_by(group_id, producer_id):
            for partition in outcome.keys() & commit.offsets.keys():
                if is_meant(commit.offsets[partition], number):
                    del commit.offsets[partition]
        offsets = self._offsets.get(group_id)
        if offsets is not None:
            for partition, (order, committed) in outcome.items():
                pending = offsets.pending.of(producer_id).get(partition)
                if pending is not None and is_meant(pending, number):
                    offsets.pending.remove(producer_id, partition)
                if committed is not None:
                    offsets.apply({partition: committed})
                offsets.pending.overtake(partition, order)
        self._forget_if_over(group_id, producer_id)

    def _sent_by(self, group_id: str, producer_id: int) -> list[PendingCommit]:
        return [one for one in self._sent.get(group_id, ()) if one.producer_id == producer_id]

    def _forget_if_over(self, group_id: str, producer_id: int) -> None:
        """Forget the producer, unless it has something pending in the group or may have soon."""
        offsets = self._offsets.get(group_id)
        if self._sent_by(group_id, producer_id):
            return
        if offsets is not None and offsets.pending.of(producer_id):
            return
        slot = self._slot_of(group_id)
        producers = self._groups.get(slot, {})
        groups = producers.get(producer_id, set())
        groups.discard(group_id)
        if not groups:
            producers.pop(producer_id, None)
        if not producers:
            self._groups.pop(slot, None)


def is_meant(pending: PendingOffset, number: int) -> bool:
    """Check whether a marker with this number ends this pending offset."""
    return number in (pending.number, ANY_NUMBER)
