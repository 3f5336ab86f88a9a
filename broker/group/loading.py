"""A group as the store has it, and how it is restored."""

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
    """A group read from the store. Without a record, only simple consumers have committed
    offsets."""

    group_id: str
    record: GroupRecord | ConsumerRecord | None
    offsets: Mapping[TopicPartition, CommittedOffset]
    pending: Mapping[int, Mapping[TopicPartition, PendingOffset]] = {}
    """The offsets of open transactions, by producer id."""
    members: tuple[ConsumerMember, ...] = ()
    """The members of a group of the consumer protocol."""


def restore(
    record: GroupRecord | ConsumerRecord,
    members: tuple[ConsumerMember, ...],
    config: GroupConfig,
    ids: IdGenerator,
    topics: TopicLookup,
    now_ms: int,
    min_generation: int,
) -> tuple[GroupBase, list[Effect]]:
    """Restore the group as it was. Only sessions start again.

    `min_generation` is where its next generation begins if the store may have lost some.
    """
    if isinstance(record, GroupRecord):
        return Group.restore(record, config, ids, now_ms, min_generation)
    return ConsumerGroup.restore(record, members, config, ids, topics, now_ms, min_generation)
