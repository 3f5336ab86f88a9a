"""A question to the leader of partitions: when were these records made?

Asked over its unix socket, by what shows how old the first record is that a group has not
committed. One msgpack document each way.
"""

from __future__ import annotations

import msgspec

# Not an API of Kafka: served on unix sockets only.
RECORD_TIMES = 32763

Place = tuple[str, int, int]  # topic, partition, offset
# Milliseconds since 1970, in the order of the question. -1: the record has no timestamp, or there
# is none at the offset; None: it was not looked up, ask again.
Times = list[int | None]

MAX_PLACES = 1_000  # in one question

_encoder = msgspec.msgpack.Encoder()
_places = msgspec.msgpack.Decoder(list[Place])
_times = msgspec.msgpack.Decoder(Times)


def encode_places(places: list[Place]) -> bytes:
    return _encoder.encode(places)


def decode_places(data: bytes) -> list[Place]:
    """Raises ValueError."""
    return _places.decode(data)


def encode_times(times: Times) -> bytes:
    return _encoder.encode(times)


def decode_times(data: bytes) -> Times:
    """Raises ValueError."""
    return _times.decode(data)
