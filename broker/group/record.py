"""The stored form of a group, and its encoding.

A classic group is one record, stored when it is Stable or Empty. A group of the consumer protocol
is a head and a field for each member, stored whenever one of them changes. Its head has all fields
of a classic record and its own `FORMAT`, so that a version that does not know it refuses the group
instead of restoring it without its members.

All protocols of a member are stored, not only the one in use: after a restart, a member that joins
again unchanged must be recognised, or it would cause a rebalance. Fields may be added with a
default; to change the meaning of one, raise `FORMAT`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
from msgspec import Struct

from moldau.broker.group.offsets import CommittedOffset, PendingOffset, TopicPartition
from moldau.broker.group.states import GroupState

FORMAT = 1
CONSUMER_FORMAT = 2
CONSUMER_KIND = "consumer"
SHARE_FORMAT = 3
SHARE_KIND = "share"


class MemberRecord(Struct, frozen=True, array_like=True):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes


class GroupRecord(Struct, frozen=True):
    group_id: str
    identity: str
    """`cgp_<ulid>`: kept while members come and go and across restarts, deleted with the group."""
    revision: int
    """Grows with every write of the group, and names its `Persist`."""
    state: GroupState
    """EMPTY or STABLE."""
    state_since_ms: int
    """Epoch milliseconds. The retention of offsets counts from when the group became Empty."""
    generation_id: int
    protocol_type: str | None
    """None if no member ever joined and only simple consumers committed offsets."""
    protocol_name: str | None
    leader: str | None
    members: tuple[MemberRecord, ...] = ()
    format: int = FORMAT


class StoredPattern(Struct, frozen=True, array_like=True):
    pattern: str
    topics: tuple[str, ...] | None
    """None if the pattern is not resolved yet."""


class ConsumerRecord(Struct, frozen=True):
    """The head of a group of the consumer protocol, or of a share group: its kind says which."""

    group_id: str
    identity: str
    revision: int
    state: GroupState
    """EMPTY or STABLE, for versions that read no further. It follows from the members."""
    state_since_ms: int
    generation_id: int
    """The group epoch."""
    protocol_type: str | None
    protocol_name: str | None
    """The assignor of the target."""
    leader: None = None
    kind: str = CONSUMER_KIND
    target_epoch: int = 0
    topic_hash: int = 0
    patterns: tuple[StoredPattern, ...] = ()
    format: int = CONSUMER_FORMAT


class StoredPartitions(Struct, frozen=True, array_like=True):
    """Partitions of one topic, each with the epoch in which the member got it."""

    topic_id: bytes
    partitions: tuple[int, ...]
    epochs: tuple[int, ...] = ()
    """Empty for a target."""


class StoredClassicMember(Struct, frozen=True, array_like=True):
    """The additional data of a classic member in a group of the consumer protocol."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class ConsumerMember(Struct, frozen=True, array_like=True):
    member_id: str
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    names: tuple[str, ...]
    pattern: str
    assignor: str | None
    epoch: int
    previous_epoch: int
    state: str
    assigned: tuple[StoredPartitions, ...]
    revoking: tuple[StoredPartitions, ...]
    target: tuple[StoredPartitions, ...]
    classic: StoredClassicMember | None = None
    format: int = CONSUMER_FORMAT


_MODERN = {(CONSUMER_KIND, CONSUMER_FORMAT), (SHARE_KIND, SHARE_FORMAT)}


class _Kind(Struct):
    kind: str = "classic"
    format: int = FORMAT


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


class UnknownRecordFormat(ValueError):
    """The record was written by a newer version."""


encode: Callable[[GroupRecord | ConsumerRecord | ConsumerMember], bytes]
encode = msgspec.msgpack.Encoder().encode
_kind_decoder = msgspec.msgpack.Decoder(_Kind)
_decoder = msgspec.msgpack.Decoder(GroupRecord)
_head_decoder = msgspec.msgpack.Decoder(ConsumerRecord)
_member_decoder = msgspec.msgpack.Decoder(ConsumerMember)


def decode(data: bytes) -> GroupRecord | ConsumerRecord:
    """Raises `UnknownRecordFormat`, or `msgspec.DecodeError` for anything but a record."""
    found = _kind_decoder.decode(data)
    if (found.kind, found.format) in _MODERN:
        return _head_decoder.decode(data)
    if found.kind != "classic" or found.format != FORMAT:
        known = f"{FORMAT}, {CONSUMER_FORMAT} and {SHARE_FORMAT}"
        raise UnknownRecordFormat(f"group record of format {found.format}, known are {known}")
    return _decoder.decode(data)


def decode_member(data: bytes) -> ConsumerMember:
    """Raises the same exceptions as `decode`."""
    member = _member_decoder.decode(data)
    if member.format != CONSUMER_FORMAT:
        raise UnknownRecordFormat(f"group member of format {member.format}")
    return member
