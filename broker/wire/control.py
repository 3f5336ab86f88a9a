"""Control batches: the markers that end transactions (KIP-98). One record, 78 bytes.

    byte 61  length, attributes, timestamp delta, offset delta, key length   5
    byte 66  key: version 0, type (0 abort, 1 commit)                        4
    byte 70  value length                                                    1
    byte 71  value: version 0, coordinator epoch                             6
    byte 77  no headers                                                      1

Clients read the type only. The coordinator epoch carries the number of the transaction here.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from moldau.broker.wire.batch import (
    CONTROL,
    CRC_AT,
    HEADER,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    TRANSACTIONAL,
    Buffer,
    CorruptBatch,
    checksum,
)

_RECORD = struct.Struct(">5B hh B hi B")
_TYPE_AND_EPOCH = struct.Struct(">h x h i")
_TYPE_AT = HEADER_SIZE + 7
MARKER_SIZE = HEADER_SIZE + _RECORD.size
MAGIC = 2
ABORT, COMMIT = 0, 1
# Lengths of the record, its key and its value, as zigzag varints.
_LENGTH, _KEY_LENGTH, _VALUE_LENGTH = (_RECORD.size - 1) << 1, 4 << 1, 6 << 1


class EndMarker(NamedTuple):
    """The contents of a control batch that ends a transaction."""

    commit: bool
    coordinator_epoch: int


def build_end_marker(
    producer_id: int, producer_epoch: int, marker: EndMarker, now_ms: int
) -> bytearray:
    batch = bytearray(MARKER_SIZE)
    HEADER.pack_into(
        batch, 0, 0, MARKER_SIZE - LENGTH_OVERHEAD, 0, MAGIC, 0, TRANSACTIONAL | CONTROL, 0,
        now_ms, now_ms, producer_id, producer_epoch, -1, 1,
    )  # fmt: skip
    kind = COMMIT if marker.commit else ABORT
    _RECORD.pack_into(
        batch, HEADER_SIZE, _LENGTH, 0, 0, 0, _KEY_LENGTH, 0, kind, _VALUE_LENGTH,
        0, marker.coordinator_epoch, 0,
    )  # fmt: skip
    struct.pack_into(">I", batch, CRC_AT, checksum(batch))
    return batch


def read_end_marker(blob: Buffer, at: int = 0) -> EndMarker:
    """Read the control batch at `at`."""
    if len(blob) - at < MARKER_SIZE:
        raise CorruptBatch(f"{len(blob) - at} bytes cannot hold a marker")
    kind, _, epoch = _TYPE_AND_EPOCH.unpack_from(blob, at + _TYPE_AT)
    return EndMarker(kind == COMMIT, epoch)
