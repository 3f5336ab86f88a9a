"""A record outside its batch."""

from __future__ import annotations

import msgspec

MAGIC = 2  # the format of batches that records are in
NO_HEADERS = b"\0"
NO_TIMESTAMP = -1


class Record(msgspec.Struct, frozen=True, gc=False):
    """`headers` are the encoded bytes, count included, so that they survive unchanged; see
    `decode_headers`."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: bytes = NO_HEADERS
