"""Record batches are patched, walked and cut as a Kafka client would still read them.

The batches come from kafka-python's builder, and its reader says whether what we did to them
left them whole: checksum, offsets, timestamps and records.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.broker.wire.batch import (
    CODEC_MASK,
    CONTROL,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    NO_PRODUCER_ID,
    TRANSACTIONAL,
    CorruptBatch,
    checksum,
    cut,
    find_batch,
    headers,
    read_header,
    set_base_offset,
    split_batches,
    stamp_append_time,
)
from tests.support.raw.kafka_python import DefaultRecordBatch, DefaultRecordBatchBuilder

CODEC_GZIP = 1
Record = tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]

RECORDS: st.SearchStrategy[list[Record]] = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=20),
        st.none() | st.binary(max_size=100),
        st.lists(st.tuples(st.text("abc", max_size=5), st.binary(max_size=5)), max_size=2),
    ),
    min_size=1,
    max_size=8,
)


def make_batch(
    records: list[Record],
    *,
    codec: int = 0,
    transactional: bool = False,
    producer: tuple[int, int, int] = (NO_PRODUCER_ID, -1, -1),
    timestamp: int = 1_700_000_000_000,
) -> bytearray:
    builder = DefaultRecordBatchBuilder(2, codec, transactional, *producer, 1 << 20)
    for number, (key, value, record_headers) in enumerate(records):
        builder.append(number, timestamp + number, key, value, record_headers)
    return bytearray(builder.build())


def plain_batch(count: int, size: int = 10) -> bytearray:
    return make_batch([(None, bytes(size), [])] * count)


def read_back(batch: bytes | bytearray | memoryview) -> Any:
    parsed = DefaultRecordBatch(bytes(batch))
    assert parsed.validate_crc()
    return parsed


def entry_of(counts: list[int], base: int) -> tuple[bytes, list[int]]:
    """Batches of so many records end to end with dense offsets, and where each begins."""
    blob, begins = bytearray(), []
    for number, count in enumerate(counts):
        batch = plain_batch(count, size=number * 7 % 50)
        set_base_offset(batch, base)
        begins.append(len(blob))
        blob += batch
        base += count
    return bytes(blob), begins


@given(
    records=RECORDS,
    codec=st.sampled_from([0, CODEC_GZIP]),
    transactional=st.booleans(),
    producer=st.tuples(
        st.integers(0, (1 << 63) - 1), st.integers(0, (1 << 15) - 1), st.integers(0, (1 << 31) - 1)
    ),
)
def test_a_header_is_read_as_kafka_python_reads_it(
    records: list[Record], codec: int, transactional: bool, producer: tuple[int, int, int]
) -> None:
    batch = make_batch(records, codec=codec, transactional=transactional, producer=producer)
    theirs = read_back(batch)
    header = read_header(b"before" + bytes(batch) + b"after", 6)
    assert header.magic == theirs.magic == 2
    assert header.size == len(batch) == theirs.size_in_bytes
    assert header.crc == theirs.crc == checksum(batch)
    assert header.attributes == theirs.attributes
    # kafka-python leaves a batch as it is when compressing does not make it smaller.
    assert header.attributes & CODEC_MASK == theirs.compression_type
    assert theirs.compression_type in (0, codec)
    assert bool(header.attributes & TRANSACTIONAL) == theirs.is_transactional == transactional
    assert not header.attributes & CONTROL
    assert header.last_offset_delta == theirs.last_offset_delta == len(records) - 1
    assert header.next_offset == theirs.next_offset == len(records)
    assert header.base_timestamp == theirs.first_timestamp
    assert header.max_timestamp == theirs.max_timestamp
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == producer
    assert header.record_count == theirs.records_count == len(records)


@given(
    records=RECORDS,
    offset=st.integers(0, (1 << 62)),
    codec=st.sampled_from([0, CODEC_GZIP]),
)
def test_placing_a_batch_needs_no_new_checksum(
    records: list[Record], offset: int, codec: int
) -> None:
    batch = make_batch(records, codec=codec)
    batch[12:16] = b"\xff\xff\xff\xff"  # producers do not know the leader epoch
    before = bytes(batch)
    frame = bytearray(b"frame" + before + b"frame")
    set_base_offset(memoryview(frame)[5:-5], offset)
    set_base_offset(batch, offset)
    assert frame == b"frame" + batch + b"frame"
    assert batch[16:] == before[16:]
    assert batch[8:12] == before[8:12]
    theirs = read_back(batch)
    assert (theirs.base_offset, theirs.leader_epoch) == (offset, 0)
    read = [(record.offset, record.key, record.value, record.headers) for record in theirs]
    assert read == [(offset + n, *record) for n, record in enumerate(records)]


@given(
    records=RECORDS,
    now=st.integers(0, 1 << 50),
    codec=st.sampled_from([0, CODEC_GZIP]),
    transactional=st.booleans(),
)
def test_append_time_is_stamped_with_a_new_checksum(
    records: list[Record], now: int, codec: int, transactional: bool
) -> None:
    batch = make_batch(records, codec=codec, transactional=transactional, producer=(5, 0, 0))
    before = read_header(batch)
    stamp_append_time(batch, before.attributes, now)
    after = read_header(batch)
    assert after == before._replace(
        crc=checksum(batch), attributes=before.attributes | LOG_APPEND_TIME, max_timestamp=now
    )
    theirs = read_back(batch)
    assert theirs.timestamp_type == 1
    assert [record.timestamp for record in theirs] == [now] * len(records)
    # Stamped again, for instance after a refused append: only the time changes.
    stamp_append_time(batch, after.attributes, now + 1)
    read_back(batch)
    assert read_header(batch).attributes == after.attributes


@given(records=RECORDS, position=st.integers(21, 60), bit=st.integers(0, 7))
def test_a_flipped_bit_changes_the_checksum(records: list[Record], position: int, bit: int) -> None:
    batch = make_batch(records)
    batch[position] ^= 1 << bit
    assert checksum(batch) != read_header(batch).crc


@given(st.lists(st.integers(1, 5), max_size=6))
def test_batches_are_split_where_they_were_joined(counts: list[int]) -> None:
    blob, begins = entry_of(counts, base=100)
    split = list(split_batches(blob))
    assert b"".join(split) == blob
    assert [len(part) for part in split] == [
        end - begin for begin, end in itertools.pairwise([*begins, len(blob)])
    ]
    assert all(part.obj is blob for part in split)
    assert list(headers(blob)) == [read_header(part) for part in split]
    for part in split:
        read_back(part)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.data())
def test_every_offset_is_found_in_its_batch(counts: list[int], data: st.DataObject) -> None:
    base = 1000
    blob, begins = entry_of(counts, base)
    end = base + sum(counts)
    assert find_batch(blob, 0) == 0  # before the entry: its first batch
    assert find_batch(blob, end) == len(blob)
    offset = data.draw(st.integers(base, end - 1))
    at = find_batch(blob, offset)
    assert at in begins
    header = read_header(blob, at)
    assert header.base_offset <= offset < header.next_offset


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.data(), st.booleans())
def test_a_cut_takes_whole_batches_up_to_the_limit(
    counts: list[int], data: st.DataObject, at_least_one: bool
) -> None:
    blob, begins = entry_of(counts, 0)
    boundaries = [*begins, len(blob)]
    start = data.draw(st.sampled_from(boundaries))
    sizes = [boundary - start for boundary in boundaries if boundary >= start]
    near = [size + step for size in sizes for step in (-1, 0, 1)]
    limit = data.draw(st.sampled_from(near) | st.integers(0, len(blob) + 10))
    expected = max((size for size in sizes if size <= limit), default=0)
    if at_least_one and expected == 0 and len(sizes) > 1:
        expected = sizes[1]
    assert cut(blob, start, limit, at_least_one=at_least_one) == start + expected


@pytest.mark.parametrize("size", [0, 1, HEADER_SIZE - 1])
def test_too_short_for_a_header(size: int) -> None:
    with pytest.raises(CorruptBatch):
        read_header(bytes(plain_batch(1))[:size])


@pytest.mark.parametrize("length", [-(1 << 31), -12, -1, 0, 48, 1 << 20, (1 << 31) - 1])
def test_a_length_that_cannot_be(length: int) -> None:
    batch = plain_batch(1)
    batch[8:12] = length.to_bytes(4, "big", signed=True)
    with pytest.raises(CorruptBatch):
        read_header(batch)
    with pytest.raises(CorruptBatch):
        list(split_batches(batch))
    with pytest.raises(CorruptBatch):
        list(headers(batch))


@given(blob=st.binary(max_size=300), lengths=st.lists(st.integers(0, 200), max_size=3))
def test_splitting_garbage_ends_with_a_clear_error(blob: bytes, lengths: list[int]) -> None:
    garbage = bytearray(blob)
    for number, length in enumerate(lengths):
        garbage[number * 61 + 8 : number * 61 + 12] = length.to_bytes(4, "big")
    try:
        total = sum(len(part) for part in split_batches(bytes(garbage)))
    except CorruptBatch:
        return
    assert total == len(garbage)
