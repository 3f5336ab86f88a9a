"""Entries as batches in one go: what is delivered is what the plain way makes of each entry."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from moldau.broker.log.native.fields import to_fields
from moldau.broker.log.native.ids import Mark, Numbering
from moldau.broker.log.native.stream_reader import (
    BATCH_BYTES,
    MAX_OFFSET_DELTA,
    numbered,
    to_batches,
)
from moldau.broker.store.stream_ids import Id, parse
from moldau.broker.wire.batch import checksum, headers, read_header
from moldau.broker.wire.records import NO_HEADERS, Record, read_records

LIMIT = 1 << 30
BITS = 3

names = st.sampled_from([b"key", b"value", b"timestamp", b"header.h", b"null-header.n", b"other"])
texts = st.sampled_from([b"", b"1", b"-1", b"1794810174547", b"soon", b"\xff"])
own = st.builds(
    lambda key, value, when: to_fields(Record(0, when, key, value, NO_HEADERS)),
    st.binary(max_size=5),
    st.binary(max_size=5),
    st.integers(-1, 1 << 45),
)
foreign = st.lists(st.tuples(names, texts), min_size=1, max_size=4).map(
    lambda pairs: [word for pair in pairs for word in pair]
)
# Close together, far apart, and with sequences that do not fit.
ids = st.tuples(st.integers(1, 4) | st.integers(1 << 30, 1 << 44), st.integers(0, 20))


def read(batches: list[bytearray]) -> list[Record]:
    for batch in batches:
        header = read_header(batch)
        assert header.size == len(batch)
        assert header.crc == checksum(batch)
        assert header.last_offset_delta <= MAX_OFFSET_DELTA
    return [record for batch in batches for record in read_records(batch, LIMIT)]


@given(
    st.lists(st.tuples(ids, own | foreign), max_size=12, unique_by=lambda one: one[0]),
    st.sampled_from([None, b"value", b"other"]),
    st.booleans(),
)
@example([((1, 0), [b"value", b"a"]), ((1 << 40, 0), [b"value", b"b"])], None, False)
@example(
    [((1, 7), [b"value", b"a"]), ((1, 8), [b"value", b"b"]), ((2, 0), [b"a", b"b"])], None, True
)
def test_the_quick_way_and_the_plain_way_agree(
    made: list[tuple[tuple[int, int], list[bytes]]], value_field: bytes | None, marked: bool
) -> None:
    raw = [(b"%d-%d" % one, fields) for one, fields in sorted(made, key=lambda one: one[0])]
    numbering = Numbering(BITS)
    if marked:
        numbering.note([Mark(1 << BITS | 7, Id(1, 9), is_end=False)])
    plain, quick = numbering.start_at(0), numbering.start_at(0)
    records = numbered([(parse(one), fields) for one, fields in raw], plain, value_field)
    found = to_batches(raw, quick, value_field, LIMIT, at_least_one=True)
    assert read(found.batches) == records
    assert found.taken == len(raw)
    assert found.last_offset == (records[-1].offset if records else -1)
    assert (quick.marks, quick.misfits) == (plain.marks, plain.misfits)
    # And both are where they are, for what comes next.
    assert quick.offset_of(Id(1 << 50, 0)) == plain.offset_of(Id(1 << 50, 0))
    assert quick.offset_of(Id(1 << 50, 0)) == plain.offset_of(Id(1 << 50, 0))


def entries(count: int, size: int) -> list[tuple[bytes, list[bytes]]]:
    fields = [b"key", b"k", b"value", bytes(size), b"timestamp", b"5"]
    return [(b"9-%d" % number, fields) for number in range(count)]


@pytest.mark.parametrize(
    ("limit", "at_least_one", "taken"),
    [(0, False, 0), (0, True, 1), (1500, False, 1), (2100, True, 2), (1 << 20, False, 5)],
)
def test_what_is_over_the_limit_is_left(limit: int, at_least_one: bool, taken: int) -> None:
    run = Numbering(10).start_at(0)
    found = to_batches(entries(5, 1000), run, None, limit, at_least_one=at_least_one)
    assert found.taken == taken
    assert len(read(found.batches)) == taken
    assert found.last_offset == (9 << 10 | taken - 1 if taken else -1)
    # What was left is not passed: it may be asked for again.
    assert run.offset_of(Id(9, taken)) == 9 << 10 | taken


def test_batches_are_small_enough_to_be_cut_at() -> None:
    found = to_batches(
        entries(40, BATCH_BYTES // 16), Numbering(10).start_at(0), None, LIMIT, at_least_one=True
    )
    assert len(found.batches) == 3
    assert [header.record_count for batch in found.batches for header in headers(batch)] == [
        16,
        16,
        8,
    ]
