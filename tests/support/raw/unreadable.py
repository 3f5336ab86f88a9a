"""Batches that no reader can decode, with a valid header and CRC, as older versions stored them."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import redis

from moldau.broker.store import keys
from moldau.broker.wire.batch import (
    ATTRIBUTES_AT,
    CRC_AT,
    HEADER_SIZE,
    checksum,
    read_header,
    set_base_offset,
)
from tests.support.raw.client import make_batch

RECORD_COUNT_AT = HEADER_SIZE - 4
RECORDS = 3  # that each of them claims to have, by its offsets
GZIP, LZ4, NO_CODEC = 1, 3, 7
KINDS = ("gzip", "lz4", "codec", "few", "many", "negative", "garbage")


def unreadable_batches(timestamp: int) -> dict[str, bytearray]:
    """One of each kind, of RECORDS offsets."""
    made = {kind: make_batch([(b"k", b"v", timestamp)] * RECORDS) for kind in KINDS}
    for kind, codec in (("gzip", GZIP), ("lz4", LZ4), ("codec", NO_CODEC)):
        struct.pack_into(">h", made[kind], ATTRIBUTES_AT, codec)
    struct.pack_into(">i", made["few"], RECORD_COUNT_AT, RECORDS - 1)
    struct.pack_into(">i", made["many"], RECORD_COUNT_AT, RECORDS + 1)
    struct.pack_into(">i", made["negative"], RECORD_COUNT_AT, -1)
    made["garbage"][HEADER_SIZE:] = b"\xff" * (len(made["garbage"]) - HEADER_SIZE)
    for batch in made.values():
        seal(batch)
    return made


def seal(batch: bytearray) -> None:
    """Write the right CRC into a batch."""
    struct.pack_into(">I", batch, CRC_AT, checksum(batch))


def plant(store: redis.Redis, topic: str, batches: Iterable[bytearray], partition: int = 0) -> int:
    """Append batches to a log that no worker has opened yet, past all checks; its end offset."""
    end = 0
    for batch in batches:
        set_base_offset(batch, end)
        store.xadd(keys.stream(topic, 0, partition), {"b": bytes(batch)}, id=f"{end}-1")
        end = read_header(batch).next_offset
    return end
