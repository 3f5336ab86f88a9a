"""Batches to Arrow columns: the same records that broker.wire.records reads one by one."""

import random
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.broker.wire import codecs
from moldau.broker.wire.batch import (
    CONTROL,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    CorruptBatch,
    read_header,
)
from moldau.broker.wire.records import (
    Record,
    build_batch,
    decode_headers,
    encode_headers,
    read_records,
)
from moldau.ops.pipeline.source import decode as module
from moldau.ops.pipeline.source.decode import FetchedBatch, decode
from tests.support.raw.record_batches import recompress

EVERYTHING = (0, 1 << 62)
CODECS = [codecs.NONE, codecs.GZIP, codecs.SNAPPY, codecs.LZ4, codecs.ZSTD]

maybe_bytes = st.none() | st.binary(max_size=300)
header_lists = st.lists(st.tuples(st.text(max_size=20), maybe_bytes), max_size=12)
record_parts = st.tuples(
    st.integers(1, 3),  # the step to the next offset
    st.integers(0, 1 << 41),
    maybe_bytes,
    maybe_bytes,
    header_lists.map(encode_headers),
)


def fetched(data: bytes | bytearray, since: int = 0, until: int = 1 << 62) -> FetchedBatch:
    return FetchedBatch(read_header(data), bytes(data), since, until)


def batch_of(parts: Sequence[tuple[int, int, bytes | None, bytes | None, bytes]], base: int,
             codec: int = codecs.NONE, attributes: int = 0) -> bytearray:  # fmt: skip
    records = []
    offset = base - 1
    for step, timestamp, key, value, headers in parts:
        offset += step
        records.append(Record(offset, timestamp, key, value, headers))
    return build_batch(
        records,
        base_offset=base,
        last_offset=max(offset, base),
        codec=codec,
        attributes=attributes,
    )


def rows(batches: Sequence[FetchedBatch], *, check_crcs: bool = True) -> list[tuple[object, ...]]:
    """What `decode` makes of them, as tuples."""
    found: list[tuple[object, ...]] = []
    for columns in decode(batches, headers=True, check_crcs=check_crcs):
        for array in (columns.key, columns.value, columns.headers):
            assert array is not None
            array.validate(full=True)
        assert columns.headers is not None
        listed = columns.headers.to_pylist()
        headers = [[(h["key"], h["value"]) for h in one or ()] for one in listed]
        found += zip(
            columns.offset.tolist(), columns.timestamp_ms.tolist(), columns.key.to_pylist(),
            columns.value.to_pylist(), headers, strict=True,
        )  # fmt: skip
    return found


def expected(batch: bytes | bytearray) -> list[tuple[object, ...]]:
    return [
        (one.offset, one.timestamp, one.key, one.value, decode_headers(one.headers))
        for one in read_records(batch, 1 << 30)
    ]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(record_parts, min_size=1, max_size=20), min_size=1, max_size=4),
    st.sampled_from(CODECS),
)
def test_every_record_as_the_one_by_one_reader_sees_it(
    batches: list[list[tuple[int, int, bytes | None, bytes | None, bytes]]], codec: int
) -> None:
    made = [batch_of(parts, 100_000 * at, codec=codec) for at, parts in enumerate(batches)]
    assert rows([fetched(one) for one in made]) == [row for one in made for row in expected(one)]


def test_many_small_batches_of_all_codecs_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(7)
    made = []
    for at in range(200):
        parts = [
            (1, 1_700_000_000_000 + i, chance.randbytes(chance.randrange(9)),
             chance.randbytes(chance.randrange(3000)), b"\0")
            for i in range(chance.randrange(1, 40))
        ]  # fmt: skip
        made.append(batch_of(parts, at * 1000, codec=CODECS[at % 5]))
    want = [row for one in made for row in expected(one)]
    assert rows([fetched(one) for one in made]) == want
    monkeypatch.setattr(module, "PORTION", 10_000)  # many portions
    assert rows([fetched(one) for one in made]) == want


def test_only_offsets_of_the_range_count() -> None:
    batch = batch_of([(1, 5, b"%d" % i, None, encode_headers([("n", b"%d" % i)]))
                      for i in range(10)], 20)  # fmt: skip
    found = rows([fetched(batch, 23, 26)])
    assert [row[0] for row in found] == [23, 24, 25]
    assert [row[2] for row in found] == [b"3", b"4", b"5"]
    assert [row[4] for row in found] == [[("n", b"3")], [("n", b"4")], [("n", b"5")]]


def test_headers_are_null_where_there_are_none_and_patched_where_they_are_not_utf_8() -> None:
    odd = b"\x02\x04\xff\xfe\x01"  # one header, a key of two bytes that are not UTF-8, null
    parts: list[tuple[int, int, bytes | None, bytes | None, bytes]] = [
        (1, 0, None, None, b"\0"), (1, 0, None, None, odd)]  # fmt: skip
    (columns,) = decode([fetched(batch_of(parts, 0))], headers=True)
    assert columns.headers is not None
    patched = "�" * 2
    assert columns.headers.to_pylist() == [None, [{"key": patched, "value": None}]]
    (without,) = decode([fetched(batch_of(parts, 0))], headers=False)
    assert without.headers is None


def test_one_record_with_very_many_headers() -> None:
    many = [(f"h{i}", b"%d" % i) for i in range(300)]
    parts = [(1, 0, b"k", b"v", encode_headers(many)), (1, 0, b"k", b"v", b"\0"),
             (1, 0, b"k", b"v", encode_headers(many[:2]))]  # fmt: skip
    assert rows([fetched(batch_of(parts, 0))]) == expected(batch_of(parts, 0))


def test_append_time_is_that_of_the_batch() -> None:
    batch = batch_of([(1, 5, None, b"x", b"\0"), (1, 9, None, b"y", b"\0")], 0,
                     attributes=LOG_APPEND_TIME)  # fmt: skip
    (columns,) = decode([fetched(batch)], headers=False)
    assert columns.timestamp_type.tolist() == [1, 1]
    assert columns.timestamp_ms.tolist() == [9, 9]


def test_control_and_aborted_batches_have_no_rows() -> None:
    parts: list[tuple[int, int, bytes | None, bytes | None, bytes]] = [(1, 0, b"a", b"b", b"\0")]
    control = fetched(batch_of(parts, 0, attributes=CONTROL))
    aborted = fetched(batch_of(parts, 1))._replace(aborted=True)
    assert rows([control, aborted, fetched(batch_of(parts, 2))]) == [(2, 0, b"a", b"b", [])]
    assert rows([control]) == []


def test_timestamps_no_calendar_has_are_moved_to_its_edge() -> None:
    batch = batch_of([(1, (1 << 63) - 1, None, None, b"\0")], 0)
    (columns,) = decode([fetched(batch)], headers=False)
    pa.array(columns.timestamp_ms * 1000).view(pa.timestamp("us")).to_pylist()
    assert columns.timestamp_ms.tolist() == [module.LAST_MS]


def test_a_wrong_checksum_is_refused_unless_check_crcs_is_false() -> None:
    batch = batch_of([(1, 5, b"key", b"value", b"\0")], 0)
    batch[-2] ^= 1
    with pytest.raises(CorruptBatch, match="checksum"):
        list(decode([fetched(batch)], headers=False))
    assert len(list(decode([fetched(batch)], headers=False, check_crcs=False))) == 1


def test_damaged_records_are_corrupt_or_records_never_something_else() -> None:
    """Every byte of a batch in turn, and random ones: no other exception, no endless loop."""
    parts = [(1, 5 + i, b"key%d" % i, b"v" * (20 * i), encode_headers([("h", b"1"), ("i", None)]))
             for i in range(6)]  # fmt: skip
    good = batch_of(parts, 0)
    chance = random.Random(3)
    refused = 0
    for at in [*range(HEADER_SIZE, len(good)), *[HEADER_SIZE + 1] * 200]:
        batch = bytearray(good)
        batch[at] = chance.randrange(256)
        try:
            found = rows([fetched(batch)], check_crcs=False)
        except CorruptBatch:
            refused += 1
        else:
            assert found == expected(batch)
    assert refused > 30


def test_a_wrong_record_count_is_corrupt() -> None:
    batch = batch_of([(1, 5, b"a", b"b", b"\0")] * 3, 0)
    for count in (2, 4):
        batch[57:61] = count.to_bytes(4, "big")
        with pytest.raises(CorruptBatch):
            rows([fetched(batch)], check_crcs=False)


def test_every_codec_decodes_to_the_same() -> None:
    batch = batch_of([(1, i, b"k%d" % i, b"v" * i, b"\0") for i in range(100)], 0)
    want = rows([fetched(batch)])
    for codec in CODECS:
        assert rows([fetched(bytes(recompress(batch, codec, None, 1 << 30)))]) == want
