"""STREAM_VIEWS: what Redis shows of streams.

Any worker can answer it, for the Redis side of native topics and for a look at a stream before it
becomes a topic. The answer is bounded, whatever the streams hold.
"""

from __future__ import annotations

import msgspec

MAX_STREAMS = 32  # in one request
MAX_GROUPS = 50  # of a stream
MAX_CONSUMERS = 50  # of a group
MAX_PENDING = 10  # the oldest of a group
MAX_ENTRIES = 5  # the newest of a stream
MAX_FIELD_BYTES = 200


class PendingView(msgspec.Struct, array_like=True, frozen=True):
    """An entry that was delivered and not acknowledged."""

    id: str
    consumer: str
    idle_ms: int  # since it was delivered last
    deliveries: int


class ConsumerView(msgspec.Struct, array_like=True, frozen=True):
    name: str
    pending: int
    idle_ms: int  # since its last command


class GroupView(msgspec.Struct, array_like=True, frozen=True):
    name: str
    consumers: int
    pending: int
    last_delivered: str
    entries_read: int | None  # None: Redis does not know
    lag: int | None
    shown_consumers: list[ConsumerView] = []
    oldest_pending: list[PendingView] = []


class FieldView(msgspec.Struct, array_like=True, frozen=True):
    name: bytes
    value: bytes  # cut off after MAX_FIELD_BYTES
    size: int  # of the whole value


class EntryView(msgspec.Struct, array_like=True, frozen=True):
    id: str
    fields: list[FieldView]  # the first fields
    count: int  # of fields


class StreamView(msgspec.Struct, array_like=True, frozen=True):
    kind: str  # what Redis' TYPE says: stream, none, or another type
    length: int = 0
    added: int = 0  # entries that were ever added
    first: str = ""  # id of the first entry
    last: str = ""  # the last id ever
    size: int = 0  # bytes of memory, about
    group_count: int = 0
    groups: list[GroupView] = []
    entries: list[EntryView] = []


class StreamsWanted(msgspec.Struct, array_like=True, frozen=True):
    streams: list[bytes]  # keys
    has_groups: bool = True
    has_entries: bool = False
