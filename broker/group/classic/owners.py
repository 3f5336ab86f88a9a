"""Which member of a classic group has which partitions, by what is stored of it."""

from __future__ import annotations

from moldau.broker.group.record import GroupRecord
from moldau.broker.group.views import PartitionOwner
from moldau.broker.wire import consumer_protocol
from moldau.broker.wire.consumer_protocol import CONSUMER


def owners_in(record: GroupRecord) -> list[PartitionOwner]:
    """The partitions of members, if the group is one of consumers."""
    if record.protocol_type != CONSUMER:
        return []
    return [
        PartitionOwner(
            member.member_id,
            member.client_id,
            member.client_host,
            tuple(consumer_protocol.assigned_partitions(member.assignment) or ()),
        )
        for member in record.members
    ]
