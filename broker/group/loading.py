"""A group as it was found in the store, and the machine that goes on from there."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from moldau.broker.group.classic.group import Group
from moldau.broker.group.config import GroupConfig, IdGenerator
from moldau.broker.group.effects import Effect
from moldau.broker.group.group_base import GroupBase
from moldau.broker.group.modern.group import ConsumerGroup
from moldau.broker.group.offsets import CommittedOffset, PendingOffset, TopicPartition
from moldau.broker.group.record import ConsumerMember, ConsumerRecord, GroupRecord
from moldau.broker.group.topics import TopicLookup


class LoadedGroup(Struct, frozen=True):
    """A group from the store. Without a record: only simple consumers committed offsets."""

    group_id: str
    record: GroupRecord | ConsumerRecord | None
    offsets: Mapping[TopicPartition, CommittedOffset]
    pending: Mapping[int, Mapping[TopicPartition, PendingOffset]] = {}
    """By producer id: of open transactions."""
    members: tuple[ConsumerMember, ...] = ()
    """Of a group of the consumer protocol."""


def restore(
    record: GroupRecord | ConsumerRecord,
    members: tuple[ConsumerMember, ...],
    config: GroupConfig,
    ids: IdGenerator,
    topics: TopicLookup,
    now_ms: int,
    generation_floor: int,
) -> tuple[GroupBase, list[Effect]]:
    """The group as it was; only sessions start again.

    `generation_floor`: where its next generation begins, if the store may have lost some.
    """
    if isinstance(record, GroupRecord):
        return Group.restore(record, config, ids, now_ms, generation_floor)
    return ConsumerGroup.restore(record, members, config, ids, topics, now_ms, generation_floor)
