"""Committed offsets of groups: stored first, then applied in memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from moldau.broker.coordinator.groups.serialization import (
    encode_offset,
    offset_field,
    pending_field,
)
from moldau.broker.coordinator.runtime.writes import REACQUIRE_PATIENCE_S
from moldau.broker.errors import SlotNotTaken, StoreFenced
from moldau.broker.group.offsets import CommittedOffset, TopicPartition
from moldau.broker.group.states import GroupState
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
        # and whether any of them goes back: group events keep what they were.
        self.on_moving: Callable[[str, bool], None] | None = None

    async def commit(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> None:
        """Store what `groups.check_commit` has just allowed, then apply it. Raises StoreFault."""
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
        """The group is about to be deleted."""
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
