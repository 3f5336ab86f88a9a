"""Converts groups and committed offsets to the hash fields they are stored as, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from moldau.broker.group.offsets import (
    CommittedOffset,
    CommittedOffsets,
    PendingOffset,
    TopicPartition,
)
from moldau.broker.group.record import (
    ConsumerMember,
    GroupRecord,
    LoadedGroup,
    decode,
    decode_member,
    encode,
)
from moldau.broker.group.views import Owners, owners_in
from moldau.broker.store.groups import MEMBER, StoredGroup

PORTION = 8_192  # bytes of members that are encoded in one turn of the event loop
MEMBER_BYTES = 400  # the cost of a member without partitions
PENDING = b"~"  # begins the field of an offset of an open transaction

Snapshot = Callable[[], ConsumerMember]
MemberFields = dict[bytes, bytes | None]

encode_offset = msgspec.msgpack.Encoder().encode
decode_offset = msgspec.msgpack.Decoder(CommittedOffset).decode


def offset_field(partition: TopicPartition) -> bytes:
    return f"{partition.topic}:{partition.partition}".encode()


def pending_field(producer_id: int, partition: TopicPartition) -> bytes:
    return b"%b%d:%b" % (PENDING, producer_id, offset_field(partition))


def encode_pending(pending: PendingOffset) -> bytes:
    """The store's scripts read number and order, and copy the rest."""
    committed = b"" if pending.committed is None else encode_offset(pending.committed)
    return b"%d:%d:%b" % (pending.number, pending.order, committed)


def offset_fields(offsets: CommittedOffsets) -> dict[bytes, bytes]:
    """All that is stored of a group's offsets."""
    fields = {offset_field(place): encode_offset(committed) for place, committed in offsets}
    for producer_id, place, pending in offsets.pending:
        fields[pending_field(producer_id, place)] = encode_pending(pending)
    return fields


def encode_members(fields: MemberFields, members: Iterator[tuple[str, Snapshot | None]]) -> bool:
    """Encode members as fields, None for one to remove. Returns False after a portion: a thousand
    members take a while, so the caller goes on in the next turn of the event loop."""
    done = 0
    for member_id, snapshot in members:
        data = None if snapshot is None else encode(snapshot())
        fields[member_field(member_id)] = data
        done += MEMBER_BYTES + len(data or b"")
        if done > PORTION:
            return False
    return True


def member_field(member_id: str) -> bytes:
    return MEMBER + member_id.encode()


def owners_of(found: LoadedGroup) -> Owners | None:
    """Who has which partitions in a group that was stored."""
    record = found.record
    if isinstance(record, GroupRecord):
        return Owners(None, partial(owners_in, record))
    return None


def loaded_group(stored: StoredGroup) -> LoadedGroup:
    offsets: dict[TopicPartition, CommittedOffset] = {}
    pending: dict[int, dict[TopicPartition, PendingOffset]] = {}
    for field, value in stored.offsets.items():
        if field.startswith(PENDING):
            producer, _, name = field[len(PENDING) :].partition(b":")
            pending.setdefault(int(producer), {})[_partition(name)] = _decode_pending(value)
        else:
            offsets[_partition(field)] = decode_offset(value)
    record = None if stored.record is None else decode(stored.record)
    members = tuple(decode_member(data) for data in stored.members)
    return LoadedGroup(stored.group_id, record, offsets, pending, members)


def _partition(field: bytes) -> TopicPartition:
    topic, _, partition = field.decode().rpartition(":")
    return TopicPartition(topic, int(partition))


def _decode_pending(value: bytes) -> PendingOffset:
    number, order, committed = value.split(b":", 2)
    return PendingOffset(int(number), int(order), decode_offset(committed) if committed else None)
