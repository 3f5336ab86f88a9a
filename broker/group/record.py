"""What is stored of a group, and its encoding. Only groups that are Stable or Empty are stored.

All protocols of a member are stored, not only the one in use: after a restart, a member that joins
again unchanged must be recognised, or it would cause a rebalance. Fields may be added with a
default; to change the meaning of one, raise `FORMAT`.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from broker.group.states import GroupState

FORMAT = 1


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
    """`cgp_<ulid>`: kept across leaves and restarts, deleted with the group."""
    revision: int
    """Grows with every write of the group; the token of its `Persist`."""
    state: GroupState
    """EMPTY or STABLE."""
    state_since_ms: int
    """Epoch milliseconds. The retention of offsets counts from when the group became Empty."""
    generation_id: int
    protocol_type: str | None
    """None: offsets of simple consumers only, no member ever joined."""
    protocol_name: str | None
    leader: str | None
    members: tuple[MemberRecord, ...] = ()
    format: int = FORMAT


class UnknownRecordFormat(ValueError):
    """The record was written by a newer version."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(GroupRecord)


def encode(record: GroupRecord) -> bytes:
    return _encoder.encode(record)


def decode(data: bytes) -> GroupRecord:
    """Raises `UnknownRecordFormat`, or `msgspec.DecodeError` for anything but a record."""
    record = _decoder.decode(data)
    if record.format != FORMAT:
        raise UnknownRecordFormat(f"group record of format {record.format}, known is {FORMAT}")
    return record
