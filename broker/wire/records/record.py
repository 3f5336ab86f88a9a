"""A record, as those see it who read or build batches."""

from __future__ import annotations

import msgspec

MAGIC = 2  # the format of batches that records are in
NO_HEADERS = b"\0"
NO_TIMESTAMP = -1


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record with its place in the log.

    `headers` are the bytes as they came, count included: what is not understood is not
    changed. See `decode_headers`.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: bytes = NO_HEADERS
