"""Batches that are damaged or made up: whatever they are, they give records or CorruptBatch."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.broker.wire.batch import CorruptBatch
from moldau.broker.wire.codecs import LZ4
from moldau.broker.wire.records import (
    Record,
    build_batch,
    encode_headers,
    first_at_or_after,
    read_records,
)
from tests.support.raw.record_batches import (
    LIMIT,
    NOW,
    batch_of,
    every_codec,
    examples,
    keyless_of,
    recompress,
    record_lists,
    some_records,
)

MAX_INT64 = (1 << 63) - 1
BASE_TIMESTAMP_AT, COUNT_AT = 27, 57


def read_in_every_way(batch: bytes | bytearray) -> None:
    """Whatever the bytes, each of these gives an answer or raises CorruptBatch."""
    ways: list[Callable[[], object]] = [
        lambda: read_records(batch, LIMIT),
        lambda: keyless_of(batch),
        lambda: first_at_or_after(batch, NOW, LIMIT),
        lambda: recompress(batch, LZ4, None, LIMIT),
    ]
    for read in ways:
        try:
            read()
        except CorruptBatch:
            continue


@every_codec
def test_truncated(codec: int) -> None:
    batch = batch_of(some_records(), codec=codec)
    for end in range(len(batch)):
        cut = batch[:end]
        with pytest.raises(CorruptBatch):
            read_records(cut, LIMIT)
        if end >= 61:
            # The same with a length that fits: now it is the records that end early.
            struct.pack_into(">i", cut, 8, end - 12)
            with pytest.raises(CorruptBatch):
                read_records(cut, LIMIT)
            with pytest.raises(CorruptBatch):
                keyless_of(cut)


@every_codec
def test_every_bit_flipped(codec: int) -> None:
    batch = batch_of(some_records(3), codec=codec)
    for at in range(len(batch)):
        for bit in range(8):
            batch[at] ^= 1 << bit
            read_in_every_way(batch)
            batch[at] ^= 1 << bit


@every_codec
@examples(100)
@given(
    records=record_lists(),
    damage=st.lists(st.tuples(st.integers(8, 5000), st.integers(0, 255)), min_size=1, max_size=6),
)
def test_damaged(codec: int, records: list[Record], damage: list[tuple[int, int]]) -> None:
    batch = batch_of(records, codec=codec)
    for at, byte in damage:
        batch[at % len(batch)] = byte
    struct.pack_into(">i", batch, 8, len(batch) - 12)  # else the length hides all the rest
    read_in_every_way(batch)


@examples(300)
@given(payload=st.binary(max_size=60), count=st.integers(0, 4), delta=st.integers(0, 100))
def test_noise_for_records(payload: bytes, count: int, delta: int) -> None:
    batch = build_batch([], base_offset=0, last_offset=delta) + payload
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">i", batch, COUNT_AT, count)
    read_in_every_way(batch)


@every_codec
@pytest.mark.parametrize("count", [-1, 0, 4, 6, (1 << 31) - 1])
def test_a_count_that_lies(codec: int, count: int) -> None:
    batch = batch_of(some_records(5), codec=codec, last_offset=1000)
    struct.pack_into(">i", batch, COUNT_AT, count)
    with pytest.raises(CorruptBatch):
        read_records(batch, LIMIT)
    with pytest.raises(CorruptBatch):
        keyless_of(batch)


def one_record(body: bytes, length: int | None = None) -> bytearray:
    """A batch of one record whose bytes are given."""
    payload = bytes(((len(body) if length is None else length) << 1,)) + body
    batch = build_batch([], base_offset=0, last_offset=10) + payload
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">q", batch, BASE_TIMESTAMP_AT, NOW)
    struct.pack_into(">i", batch, COUNT_AT, 1)
    return batch


def test_a_record_by_hand() -> None:
    batch = one_record(b"\0\x02\x04\x02k\x04vw\x02\x02h\x01")
    record = Record(2, NOW + 1, b"k", b"vw", encode_headers([("h", None)]))
    assert read_records(batch, LIMIT) == [record]


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param(one_record(b"\0\0\0\2k\2v\0", 7), id="shorter than it is"),
        pytest.param(one_record(b"\0\0\0\2k\2v\0", 9), id="longer than it is"),
        pytest.param(one_record(b"\0\0\0\2k\2v\0\0"), id="a byte too many"),
        pytest.param(one_record(b"\0\0\0\x7ek\2v\0"), id="key over the end"),
        pytest.param(one_record(b"\0\0\0\2k\x7ev\0"), id="value over the end"),
        pytest.param(one_record(b"\0\0\0\2k\2v\1"), id="negative header count"),
        pytest.param(one_record(b"\0\0\0\2k\2v\x7e"), id="headers over the end"),
        pytest.param(one_record(b"\0\0\0\2k\2v\2\1"), id="header without key"),
        pytest.param(one_record(b"\0\0\0\2k\2v\2\1\1"), id="header without key, null value"),
        pytest.param(one_record(b"\0\0\1\2k\2v\0"), id="negative offset delta"),
        pytest.param(one_record(b"\0\0\x16\2k\2v\0"), id="offset delta over the last"),
        pytest.param(one_record(b"\0" + b"\xff" * 10 + b"\1\0\2k\2v\0"), id="endless timestamp"),
        pytest.param(one_record(b"\0\0\0" + b"\xff" * 9 + b"\x7e"), id="key of absurd length"),
    ],
)
def test_malformed_record(batch: bytearray) -> None:
    with pytest.raises(CorruptBatch):
        read_records(batch, LIMIT)
    with pytest.raises(CorruptBatch):
        keyless_of(batch)


def test_offset_deltas_must_increase() -> None:
    batch = batch_of([Record(0, NOW, b"k", b"v"), Record(1, NOW, b"k", b"v")])
    assert batch[-7:-5] == b"\0\2"  # timestamp delta and offset delta of the second record
    batch[-6] = 0
    with pytest.raises(CorruptBatch, match="offset delta 0 after 0"):
        read_records(batch, LIMIT)


def test_long_varints_everywhere_are_refused_at_once() -> None:
    # A reader that looked for the end of each again would take hours over this.
    batch = build_batch([], base_offset=0, last_offset=1 << 30) + b"\x80" * (1 << 23)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">i", batch, COUNT_AT, 1 << 22)
    with pytest.raises(CorruptBatch):
        read_records(batch, LIMIT)


@pytest.mark.parametrize(
    ("at", "layout", "value"),
    [(16, ">b", 1), (0, ">q", MAX_INT64), (8, ">i", 48), (8, ">i", -1)],
    ids=["magic", "offset overflow", "shorter", "negative length"],
)
def test_a_header_that_is_none(at: int, layout: str, value: int) -> None:
    batch = batch_of(some_records())
    struct.pack_into(layout, batch, at, value)
    with pytest.raises(CorruptBatch):
        read_records(batch, LIMIT)


def test_something_after_the_batch() -> None:
    batch = batch_of(some_records()) + b"\0"
    with pytest.raises(CorruptBatch):
        read_records(batch, LIMIT)
    with pytest.raises(CorruptBatch):
        recompress(batch, LZ4, None, LIMIT)


def test_an_unknown_codec() -> None:
    batch = batch_of(some_records())
    struct.pack_into(">h", batch, 21, 5)
    with pytest.raises(CorruptBatch, match="codec 5"):
        read_records(batch, LIMIT)
