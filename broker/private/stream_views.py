"""A question to any worker: what does Redis show of these streams?

Asked over its unix socket, for the Redis side of native topics and for a look at a stream before it
is made a topic. One msgpack document each way, bounded whatever the streams hold.
"""

from __future__ import annotations

import msgspec

# Not an API of Kafka: served on unix sockets only.
STREAM_VIEWS = 32760

MAX_STREAMS = 32  # in one question
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
    idle_ms: int  # since it asked last


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
    value: bytes  # its beginning
    size: int  # of all of it


class EntryView(msgspec.Struct, array_like=True, frozen=True):
    id: str
    fields: list[FieldView]  # the first ones
    count: int  # of all fields


class StreamView(msgspec.Struct, array_like=True, frozen=True):
    kind: str  # what Redis' TYPE says: stream, none, or another type
    length: int = 0
    added: int = 0  # entries, ever
    first: str = ""  # id of the first entry
    last: str = ""  # the last id ever
    size: int = 0  # bytes of memory, about
    group_count: int = 0
    groups: list[GroupView] = []
    entries: list[EntryView] = []


class Question(msgspec.Struct, array_like=True, frozen=True):
    streams: list[bytes]  # keys
    has_groups: bool = True
    has_entries: bool = False


_encoder = msgspec.msgpack.Encoder()
_question = msgspec.msgpack.Decoder(Question)
_views = msgspec.msgpack.Decoder(list[StreamView | None])


def encode_question(question: Question) -> bytes:
    return _encoder.encode(question)


def decode_question(data: bytes) -> Question:
    """Raises ValueError."""
    return _question.decode(data)


def encode_views(views: list[StreamView | None]) -> bytes:
    """None: there was no time for it."""
    return _encoder.encode(views)


def decode_views(data: bytes) -> list[StreamView | None]:
    """Raises ValueError."""
    return _views.decode(data)
