"""Compaction: who reads the cleaned log ends up knowing what the whole log says."""

from __future__ import annotations

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given
from hypothesis import strategies as st

from moldau.broker.log.keeping.cleaning import AbortedBatches
from moldau.broker.store.aborted import AbortedTransaction
from moldau.broker.wire.batch import (
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    CorruptBatch,
    read_header,
    stamp_append_time,
)
from moldau.broker.wire.codecs import GZIP, LZ4, NONE, SNAPPY, ZSTD
from moldau.broker.wire.records import Record, read_records
from tests.unit.log.cleaning import (
    LIMIT,
    NOW,
    RETENTION,
    Log,
    batch_of,
    clean,
    cleaned,
    examples,
    log_of,
    note,
    noted,
    records_of,
    table_of,
)

keys_of_few = st.sampled_from([b"", b"a", b"b", b"c", b"a key of more than sixteen bytes"])
records_drawn = st.tuples(st.none() | keys_of_few, st.none() | st.binary(max_size=3))


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """Batches of every codec and kind, with and without gaps in their offsets."""
    log: Log = []
    offset = draw(st.sampled_from((0, 1000)))
    for batch in draw(st.lists(st.lists(records_drawn, min_size=1, max_size=5), max_size=6)):
        base = offset
        records = []
        for key, value in batch:
            offset += draw(st.sampled_from((0, 0, 0, 1, 70)))
            records.append(Record(offset, NOW - draw(st.integers(0, 5000)), key, value))
            offset += 1
        offset += draw(st.sampled_from((0, 0, 2)))
        codec = draw(st.sampled_from((NONE, NONE, GZIP, SNAPPY, LZ4, ZSTD)))
        log.append(batch_of(records, base_offset=base, last_offset=offset - 1, codec=codec))
    return log


@examples(60)
@given(logs())
def test_the_cleaned_log_says_the_same(log: Log) -> None:
    assert table_of(cleaned(log)) == table_of(log)


@examples(60)
@given(logs())
def test_the_cleaned_log_says_the_same_without_its_tombstones(log: Log) -> None:
    once = cleaned(log)
    later = cleaned(once, now=NOW + RETENTION)
    assert table_of(later) == table_of(log)
    assert all(record.value is not None for record in records_of(later))


@examples(60)
@given(logs())
def test_the_newest_record_of_each_key_stays_as_it_was(log: Log) -> None:
    newest = {record.key: record for record in records_of(log) if record.key is not None}
    expected = sorted(newest.values(), key=lambda record: record.offset)
    assert records_of(cleaned(log)) == expected


@examples(60)
@given(logs())
def test_cleaning_again_changes_nothing(log: Log) -> None:
    once = cleaned(log)
    again = cleaned(once)
    assert len(again) == len(once)
    assert all(after is before for after, before in zip(again, once, strict=True))


@examples(60)
@given(logs())
def test_batches_cover_the_offsets_they_covered(log: Log) -> None:
    before = {read_header(batch).base_offset: read_header(batch) for batch in log}
    last = -1
    for batch in cleaned(log):
        header = read_header(batch)
        assert header.next_offset == before[header.base_offset].next_offset
        assert header.base_offset > last
        last = header.next_offset - 1


@examples(50)
@given(logs())
def test_other_clients_read_the_cleaned_log(log: Log) -> None:
    for batch in cleaned(log):
        theirs = DefaultRecordBatch(bytes(batch))
        assert theirs.validate_crc()
        assert [(r.offset, r.timestamp, r.key, r.value) for r in theirs] == [
            (r.offset, r.timestamp, r.key, r.value) for r in read_records(batch, LIMIT)
        ]


@examples(60)
@given(logs(), st.integers(0, 6))
def test_what_was_not_noted_is_left_alone(log: Log, noted_batches: int) -> None:
    keys = noted(log[:noted_batches])
    for number, batch in enumerate(log):
        left = clean(batch, keys, now_ms=NOW, delete_retention_ms=RETENTION, limit=LIMIT)
        if number >= noted_batches:
            assert left is batch
    partly: Log = []
    for batch in log:
        left = clean(batch, keys, now_ms=NOW, delete_retention_ms=RETENTION, limit=LIMIT)
        partly += [] if left is None else [left]
    assert table_of(partly) == table_of(log)


@examples(60)
@given(logs())
def test_a_pass_that_dies_half_way_loses_nothing(log: Log) -> None:
    # Second pass, tombstones due: at every moment the log on disk says the same.
    log = cleaned(log)
    keys = noted(log)
    now = NOW + RETENTION
    done: Log = []
    for number, batch in enumerate(log):
        left = clean(batch, keys, now_ms=now, delete_retention_ms=RETENTION, limit=LIMIT)
        done += [] if left is None else [left]
        assert table_of([*done, *log[number + 1 :]]) == table_of(log)


def test_only_the_newest_of_a_key_stays() -> None:
    log = log_of([(b"a", b"1"), (b"b", b"1")], [(b"a", b"2"), (b"c", b"1")], [(b"a", b"3")])
    left = cleaned(log)
    assert [(r.offset, r.key, r.value) for r in records_of(left)] == [
        (1, b"b", b"1"),
        (3, b"c", b"1"),
        (4, b"a", b"3"),
    ]
    assert left[2] is log[2]


def test_a_batch_without_a_record_left_is_gone() -> None:
    log = log_of([(b"a", b"1")], [(b"a", b"2")])
    assert cleaned(log) == [log[1]]


def test_records_without_a_key_are_dropped() -> None:
    log = log_of([(None, b"1"), (b"a", b"1")], [(None, b"2")])
    assert [record.offset for record in records_of(cleaned(log))] == [1]


def test_what_loses_nothing_is_the_same_object() -> None:
    log = log_of([(b"a", b"1")], [(b"b", b"2")])
    views: Log = [memoryview(batch) for batch in log]
    assert all(after is before for after, before in zip(cleaned(views), views, strict=True))


def test_a_tombstone_outlives_its_horizon_by_nothing() -> None:
    log = log_of([(b"a", b"1")], [(b"a", None), (b"b", b"1")])
    first = cleaned(log, now=NOW, retention=5000)
    (batch,) = first
    header = read_header(batch)
    assert header.attributes & DELETE_HORIZON
    assert header.base_timestamp == NOW + 5000
    assert records_of(first) == read_records(log[1], LIMIT)

    # A later pass keeps the horizon of the first one, whatever the retention is by then.
    assert cleaned(first, now=NOW + 4999, retention=1)[0] is batch

    (rest,) = cleaned(first, now=NOW + 5000)
    assert [record.key for record in read_records(rest, LIMIT)] == [b"b"]
    assert [record.timestamp for record in read_records(rest, LIMIT)] == [NOW - 999]
    assert read_header(rest).base_timestamp == NOW + 5000
    assert cleaned([rest], now=NOW + RETENTION)[0] is rest


def test_a_tombstone_alone_leaves_nothing_behind() -> None:
    first = cleaned(log_of([(b"a", b"1"), (b"a", None)]), retention=0)
    assert [record.value for record in records_of(first)] == [None]
    assert cleaned(first) == []


def test_a_tombstone_that_was_overwritten_sets_no_horizon() -> None:
    (batch,) = cleaned(log_of([(b"a", None), (b"a", b"1")]))
    assert not read_header(batch).attributes & DELETE_HORIZON


def test_tombstones_may_be_kept_for_ever() -> None:
    log = cleaned(log_of([(b"a", None)]), retention=(1 << 63) - 1)
    assert read_header(log[0]).base_timestamp == (1 << 63) - 1
    assert records_of(log)[0].timestamp == NOW - 1000
    assert cleaned(log, now=NOW * 1000)[0] is log[0]


def test_what_a_batch_says_of_its_producer_stays() -> None:
    records = [Record(10, NOW, b"a", b"1"), Record(11, NOW, b"a", None)]
    batch = batch_of(
        records,
        base_offset=9,
        last_offset=12,
        codec=ZSTD,
        attributes=TRANSACTIONAL,
        producer_id=77,
        producer_epoch=3,
        base_sequence=500,
        leader_epoch=4,
    )
    (left,) = cleaned([batch])
    before, after = read_header(batch), read_header(left)
    assert after.attributes == TRANSACTIONAL | DELETE_HORIZON | ZSTD
    assert (after.producer_id, after.producer_epoch, after.base_sequence) == (77, 3, 500)
    assert (after.base_offset, after.next_offset, after.leader_epoch) == (9, 13, 4)
    assert after.record_count == 1
    assert after.max_timestamp == before.max_timestamp


def test_append_time_stays() -> None:
    (batch,) = log_of([(b"a", b"1"), (b"a", None), (b"b", b"2")])
    assert isinstance(batch, bytearray)
    stamp_append_time(batch, NONE, NOW + 9)
    (left,) = cleaned([batch])
    assert read_header(left).attributes & LOG_APPEND_TIME
    assert read_header(left).max_timestamp == NOW + 9
    assert {record.timestamp for record in read_records(left, LIMIT)} == {NOW + 9}


def test_control_batches_go_and_their_keys_do_not_count() -> None:
    # Between two records that happen to have the key of a commit marker.
    marker = b"\0\0\0\1"
    first, last = (batch_of([Record(offset, NOW, marker, b"value")]) for offset in (0, 2))
    control = batch_of([Record(1, NOW, marker, bytes(6))], attributes=CONTROL | TRANSACTIONAL)
    (left,) = cleaned([first, control, last])
    assert left is last

    (left,) = cleaned([first, control])
    assert left is first
    assert noted([first, control]).last_offset == 1
    assert len(noted([control])) == 0


@examples(60)
@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from("bacp")), max_size=40))
def test_which_batches_were_aborted(steps: list[tuple[int, str]]) -> None:
    """Against a log of three producers that begin, write, abort, commit; one batch an offset."""
    open_from: dict[int, int] = {}
    batches: list[tuple[int, int, int]] = []  # offset, producer, attributes
    aborted = []
    hidden: set[int] = set()
    for offset, (producer, step) in enumerate(steps):
        if step in "ac" and producer in open_from:
            first = open_from.pop(producer)
            if step == "a":
                aborted.append(AbortedTransaction(offset, first, producer, 0))
                mine = range(first, offset)
                hidden |= {at for at, who, flags in batches if who == producer and at in mine}
            continue
        attributes = TRANSACTIONAL if step != "p" or producer in open_from else 0
        if attributes:
            open_from.setdefault(producer, offset)
        batches.append((offset, producer, attributes))
    found = AbortedBatches(sorted(aborted, key=lambda each: each.first))
    for offset, producer, attributes in batches:
        record = [Record(offset, NOW, b"k", b"v")]
        batch = batch_of(record, attributes=attributes, producer_id=producer, base_sequence=0)
        assert found.have(read_header(batch)) == (offset in hidden)


@pytest.mark.parametrize("codec", [NONE, GZIP, SNAPPY, LZ4, ZSTD])
def test_a_rebuilt_batch_is_compressed_as_asked(codec: int) -> None:
    log = log_of([(b"a", b"1"), (b"a", b"2")], codec=LZ4)
    options = {"now_ms": NOW, "delete_retention_ms": RETENTION, "limit": LIMIT}
    same = clean(log[0], noted(log), **options)
    other = clean(log[0], noted(log), codec=codec, **options)
    assert same is not None
    assert other is not None
    assert read_header(same).attributes & CODEC_MASK == LZ4
    assert read_header(other).attributes & CODEC_MASK == codec
    assert read_records(same, LIMIT) == read_records(other, LIMIT)


@examples(150)
@given(logs(), st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), max_size=4))
def test_damage_raises_nothing_else(log: Log, damage: list[tuple[int, int]]) -> None:
    keys = noted(log)
    for batch in log:
        damaged = bytearray(batch)
        for at, byte in damage:
            damaged[at % len(damaged)] = byte
        for codec in (None, LZ4):
            try:
                note(keys, damaged, LIMIT)
                clean(
                    damaged,
                    keys,
                    now_ms=NOW,
                    delete_retention_ms=RETENTION,
                    limit=LIMIT,
                    codec=codec,
                )
            except CorruptBatch:
                continue
