"""Groups and committed offsets as they are stored: fields of hashes to values, and back."""

from __future__ import annotations

import msgspec

from broker.group.groups import LoadedGroup
from broker.group.offsets import CommittedOffset, TopicPartition
from broker.group.record import decode
from broker.store.groups import StoredGroup

encode_offset = msgspec.msgpack.Encoder().encode
_decode_offset = msgspec.msgpack.Decoder(CommittedOffset).decode


def offset_field(partition: TopicPartition) -> bytes:
    return f"{partition.topic}:{partition.partition}".encode()


def loaded_group(stored: StoredGroup) -> LoadedGroup:
    offsets = {}
    for field, value in stored.offsets.items():
        topic, _, partition = field.decode().rpartition(":")
        offsets[TopicPartition(topic, int(partition))] = _decode_offset(value)
    record = None if stored.record is None else decode(stored.record)
    return LoadedGroup(stored.group_id, record, offsets)
