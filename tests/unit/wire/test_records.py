"""Records in batches: round trips, kafka-python and aiokafka as oracles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import aiokafka.record.default_records as aiokafka_records
import pytest
from aiokafka.record._crecords import default_records as aiokafka_crecords
from hypothesis import given
from hypothesis import strategies as st

from moldau.broker.wire.batch import (
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    CorruptBatch,
    checksum,
    read_header,
    stamp_append_time,
)
from moldau.broker.wire.codecs import GZIP, LZ4, NONE, ZSTD, OutputTooLarge
from moldau.broker.wire.records import (
    Record,
    build_batch,
    decode_headers,
    encode_headers,
    first_at_or_after,
    read_records,
)
from tests.support.raw import kafka_python
from tests.support.raw.record_batches import (
    CODECS,
    LIMIT,
    NOW,
    batch_of,
    every_codec,
    examples,
    header_lists,
    keyless_of,
    recompress,
    record_lists,
    sane_times,
    some_records,
)

MIN_INT64, MAX_INT64 = -(1 << 63), (1 << 63) - 1

# (reader, builder, the codecs it has here) of implementations that share nothing with ours.
ORACLES: dict[str, tuple[Any, Any, tuple[int, ...]]] = {
    "kafka-python": (
        kafka_python.DefaultRecordBatch,
        kafka_python.DefaultRecordBatchBuilder,
        (NONE, GZIP, LZ4, ZSTD),  # its snappy needs a package that is not installed
    ),
    "aiokafka": (
        aiokafka_records._DefaultRecordBatchPy,
        aiokafka_records._DefaultRecordBatchBuilderPy,
        CODECS,
    ),
    "aiokafka in C": (
        aiokafka_crecords.DefaultRecordBatch,
        aiokafka_crecords.DefaultRecordBatchBuilder,
        CODECS,
    ),
}
ORACLE_CODECS = [(name, codec) for name, (_, _, codecs) in ORACLES.items() for codec in codecs]
oracles = pytest.mark.parametrize(("oracle", "codec"), ORACLE_CODECS)


def their_view(records: list[Record]) -> list[tuple[object, ...]]:
    return [(r.offset, r.timestamp, r.key, r.value, decode_headers(r.headers)) for r in records]


def read_with(oracle: str, batch: bytes | bytearray) -> list[tuple[object, ...]]:
    theirs = ORACLES[oracle][0](bytes(batch))
    assert theirs.validate_crc()
    return [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in theirs]


def build_with(oracle: str, codec: int, records: list[Record]) -> bytes:
    builder = ORACLES[oracle][1](2, codec, 0, 4000, 3, 17, 1 << 20)
    for number, record in enumerate(records):
        headers = decode_headers(record.headers)
        builder.append(number, record.timestamp, record.key, record.value, headers)
    return bytes(builder.build())


@every_codec
@examples(60)
@given(records=record_lists(times=st.integers(MIN_INT64, MAX_INT64) | sane_times))
def test_round_trip(codec: int, records: list[Record]) -> None:
    batch = batch_of(records, codec=codec)
    assert read_records(batch, LIMIT) == records
    assert read_records(memoryview(batch), LIMIT) == records
    header = read_header(batch)
    assert header.size == len(batch)
    assert header.crc == checksum(batch)
    assert header.attributes == codec
    assert header.record_count == len(records)
    assert header.next_offset == records[-1].offset + 1
    assert header.max_timestamp == max(record.timestamp for record in records)


@oracles
@examples(50)
@given(records=record_lists(dense=True))
def test_reads_what_others_build(oracle: str, codec: int, records: list[Record]) -> None:
    expected = [(n, *fields) for n, (_, *fields) in enumerate(their_view(records))]
    batch = build_with(oracle, codec, records)
    assert their_view(read_records(batch, LIMIT)) == expected


@oracles
def test_reads_what_others_compress(oracle: str, codec: int) -> None:
    # They leave a batch alone that compression makes no smaller; this one it does.
    batch = build_with(oracle, codec, some_records(300))
    assert read_header(batch).attributes & CODEC_MASK == codec
    values = [record.value for record in read_records(batch, LIMIT)]
    assert values == [record.value for record in some_records(300)]


@oracles
@examples(50)
@given(records=record_lists())
def test_others_read_what_is_built(oracle: str, codec: int, records: list[Record]) -> None:
    batch = batch_of(records, codec=codec, last_offset=records[-1].offset + 3)
    assert read_with(oracle, batch) == their_view(records)


@pytest.mark.parametrize("oracle", ORACLES)
def test_the_same_records_make_the_same_bytes(oracle: str) -> None:
    records = [Record(n, NOW + n, b"k%d" % n, b"v" * n) for n in range(1000)]
    ours = batch_of(records, producer_id=4000, producer_epoch=3, base_sequence=17)
    theirs = build_with(oracle, NONE, records)
    assert ours[16:] == theirs[16:]  # before: what the broker assigns


def test_the_header_is_as_asked() -> None:
    attributes = LOG_APPEND_TIME | TRANSACTIONAL | CONTROL | DELETE_HORIZON | GZIP
    batch = batch_of(
        some_records(),
        base_offset=90,
        last_offset=200,
        codec=ZSTD,
        attributes=attributes,
        producer_id=1 << 40,
        producer_epoch=9,
        base_sequence=77,
        leader_epoch=5,
    )
    header = read_header(batch)
    assert header.base_offset == 90
    assert header.last_offset_delta == 110
    assert header.leader_epoch == 5
    assert header.magic == 2
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (1 << 40, 9, 77)
    assert header.attributes == LOG_APPEND_TIME | TRANSACTIONAL | CONTROL | ZSTD
    assert [r.offset for r in read_records(batch, LIMIT)] == [100, 101, 102, 103, 104]


@every_codec
@pytest.mark.parametrize("oracle", ["aiokafka", "aiokafka in C"])
@examples(40)
@given(records=record_lists(), horizon=st.integers(0, NOW * 2))
def test_a_delete_horizon_leaves_timestamps_alone(
    oracle: str, codec: int, records: list[Record], horizon: int
) -> None:
    batch = batch_of(records, codec=codec, delete_horizon_ms=horizon)
    header = read_header(batch)
    assert header.attributes == DELETE_HORIZON | codec
    assert header.base_timestamp == horizon
    assert read_records(batch, LIMIT) == records
    assert read_with(oracle, batch) == their_view(records)


def test_timestamps_that_only_java_arithmetic_can_hold() -> None:
    records = [Record(0, MIN_INT64, b"a", None), Record(1, MAX_INT64, b"b", None)]
    assert read_records(batch_of(records), LIMIT) == records
    assert read_records(batch_of(records, delete_horizon_ms=MAX_INT64), LIMIT) == records


@every_codec
def test_append_time_is_every_records_time(codec: int) -> None:
    batch = batch_of(some_records(), codec=codec)
    stamp_append_time(batch, codec, NOW + 5000)
    assert {record.timestamp for record in read_records(batch, LIMIT)} == {NOW + 5000}
    assert first_at_or_after(batch, NOW + 5000, LIMIT) == (100, NOW + 5000)
    assert first_at_or_after(batch, NOW + 5001, LIMIT) is None
    for oracle in ("aiokafka", "aiokafka in C"):
        assert read_with(oracle, batch) == their_view(read_records(batch, LIMIT))


def test_a_batch_without_records() -> None:
    batch = build_batch([], base_offset=5, last_offset=9, codec=GZIP, producer_id=1)
    assert read_header(batch).attributes == NONE
    assert read_header(batch).next_offset == 10
    assert read_records(batch, LIMIT) == []
    assert not keyless_of(batch)
    assert first_at_or_after(batch, MIN_INT64, LIMIT) is None
    assert recompress(batch, ZSTD, None, LIMIT) is batch


@pytest.mark.parametrize(
    ("offsets", "base", "last"),
    [([5, 5], 5, 9), ([6, 5], 5, 9), ([4], 5, 9), ([10], 5, 9)],
    ids=["twice", "backwards", "before the base", "after the last"],
)
def test_offsets_that_make_no_batch(offsets: list[int], base: int, last: int) -> None:
    records = [Record(offset, NOW, b"k", b"v") for offset in offsets]
    with pytest.raises(ValueError, match="record"):
        build_batch(records, base_offset=base, last_offset=last)


@pytest.mark.parametrize("target", CODECS)
@every_codec
@examples(25)
@given(records=record_lists())
def test_recompress_keeps_everything_else(codec: int, target: int, records: list[Record]) -> None:
    batch = batch_of(
        records,
        codec=codec,
        last_offset=records[-1].offset + 2,
        attributes=TRANSACTIONAL,
        producer_id=8,
        producer_epoch=1,
        base_sequence=3,
        leader_epoch=2,
        delete_horizon_ms=NOW,
    )
    before = bytes(batch)
    other = recompress(batch, target, None, LIMIT)
    assert batch == before
    if target == codec:
        assert other is batch
        return
    assert read_records(other, LIMIT) == records
    header, old = read_header(other), read_header(batch)
    assert header.attributes == TRANSACTIONAL | DELETE_HORIZON | target
    assert header.crc == checksum(other)
    assert header._replace(attributes=0, crc=0, length=0) == old._replace(
        attributes=0, crc=0, length=0
    )


def test_recompress_takes_a_level() -> None:
    batch = batch_of([Record(n, NOW, b"%d" % (n * n), b"%d" % n) for n in range(2000)])
    assert len(recompress(batch, GZIP, 9, LIMIT)) < len(recompress(batch, GZIP, 1, LIMIT))


@every_codec
@examples(60)
@given(records=record_lists())
def test_keyless(codec: int, records: list[Record]) -> None:
    expected = [at for at, record in enumerate(records) if record.key is None]
    assert keyless_of(batch_of(records, codec=codec)) == expected


def test_an_empty_key_is_a_key() -> None:
    assert not keyless_of(batch_of([Record(0, NOW, b"", None)]))


@every_codec
@examples(60)
@given(records=record_lists(times=st.integers(-1, 30)), wanted=st.integers(-1, 31))
def test_look_up_by_timestamp(codec: int, records: list[Record], wanted: int) -> None:
    batch = batch_of(records, codec=codec)
    found = [(r.offset, r.timestamp) for r in records if r.timestamp >= wanted]
    assert first_at_or_after(batch, wanted, LIMIT) == (found[0] if found else None)
    start = records[-1].offset - 1
    later = [pair for pair in found if pair[0] >= start]
    assert first_at_or_after(batch, wanted, LIMIT, start) == (later[0] if later else None)


@examples(60)
@given(header_lists)
def test_headers_round_trip(headers: list[tuple[str, bytes | None]]) -> None:
    assert decode_headers(encode_headers(headers)) == headers


def test_headers_that_are_not_utf8_survive() -> None:
    raw = bytes((2, 4, 0xFF, 0xFE, 2)) + b"v"  # one header, two bytes of key, one of value
    record = Record(0, NOW, b"k", b"v", raw)
    assert read_records(batch_of([record]), LIMIT) == [record]
    assert decode_headers(raw) == [("\ufffd\ufffd", b"v")]


@pytest.mark.parametrize(
    "raw", [b"", b"\1", b"\2", b"\2\1", b"\2\1\0", b"\2\4a", b"\0\0", b"\2\2a\4b"]
)
def test_headers_that_are_none(raw: bytes) -> None:
    with pytest.raises(CorruptBatch):
        decode_headers(raw)


@every_codec
def test_the_limit_is_on_what_is_decompressed(codec: int) -> None:
    batch = batch_of([Record(0, NOW, b"k", bytes(100_000))], codec=codec)
    readers: list[Callable[[], object]] = [
        lambda: read_records(batch, 50_000),
        lambda: keyless_of(batch, 50_000),
        lambda: first_at_or_after(batch, 0, 50_000),
        lambda: recompress(batch, GZIP if codec == NONE else NONE, None, 50_000),
    ]
    for read in readers:
        if codec == NONE:
            read()  # it is there in full already
        else:
            with pytest.raises(OutputTooLarge):
                read()
