"""A question to the leader of partitions: how many records are there from an offset on?

Asked over its unix socket, where offsets do not tell: those of native topics are made of times, so
records have to be counted in the store. One msgpack document each way.
"""

from __future__ import annotations

import msgspec

# Not an API of Kafka: served on unix sockets only.
RECORD_COUNTS = 32761

Behind = tuple[str, int, str, int]  # topic, partition, group, the offset it has committed
# In the order of the question. UNKNOWN: too many to be counted; None: it was not looked up, as
# others took the time for it: ask again.
Counts = list[int | None]

UNKNOWN = -1
MAX_BEHIND = 1_000  # in one question

_encoder = msgspec.msgpack.Encoder()
_behind = msgspec.msgpack.Decoder(list[Behind])
_counts = msgspec.msgpack.Decoder(Counts)


def encode_behind(behind: list[Behind]) -> bytes:
    return _encoder.encode(behind)


def decode_behind(data: bytes) -> list[Behind]:
    """Raises ValueError."""
    return _behind.decode(data)


def encode_counts(counts: Counts) -> bytes:
    return _encoder.encode(counts)


def decode_counts(data: bytes) -> Counts:
    """Raises ValueError."""
    return _counts.decode(data)
