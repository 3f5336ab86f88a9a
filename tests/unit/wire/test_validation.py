"""The check of a batch's records accepts what the walk over records accepts, run by run or not."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.broker.wire.batch import HEADER_SIZE, CorruptBatch, read_header
from moldau.broker.wire.records import Record, build_batch, encode_headers
from moldau.broker.wire.records.validation import check_records
from moldau.broker.wire.records.walking import payload_of, walk

NOW = 1_700_000_000_000
LIMIT = 1 << 24


def batch_of(records: list[Record]) -> bytearray:
    return build_batch(records, base_offset=0, last_offset=len(records) - 1)


def is_walked(batch: bytearray, payload: bytes) -> bool:
    """Whether the walk accepts it, with offsets consecutive from 0."""
    try:
        deltas = [span[0] for span in walk(read_header(batch), payload)]
    except CorruptBatch:
        return False
    return deltas == list(range(len(deltas)))


def is_accepted(count: int, payload: bytes) -> bool:
    try:
        check_records(count, payload)
    except CorruptBatch:
        return False
    return True


headers = st.lists(
    st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2
).map(encode_headers)
values = st.none() | st.binary(max_size=5) | st.integers(60, 140).map(bytes)
alike = st.builds(
    lambda count, step, key, value: [
        Record(at, NOW + at * step, key, value) for at in range(count)
    ],
    st.integers(1, 200),
    st.sampled_from([0, 1, 7, 64, 5000]),
    st.none() | st.binary(max_size=3),
    values,
)
mixed = st.lists(
    st.tuples(st.integers(-70, 9000), st.none() | st.binary(max_size=3), values, headers),
    min_size=1,
    max_size=30,
).map(
    lambda rows: [
        Record(at, NOW + delta, key, value, head)
        for at, (delta, key, value, head) in enumerate(rows)
    ]
)
batches = st.lists(alike | mixed, min_size=1, max_size=3).map(
    lambda runs: [
        Record(at, one.timestamp, one.key, one.value, one.headers)
        for at, one in enumerate(one for run in runs for one in run)
    ]
)


@given(batches)
def test_whole_batches_are_accepted(records: list[Record]) -> None:
    batch = batch_of(records)
    payload = payload_of(batch, read_header(batch), LIMIT)
    assert is_walked(batch, payload)
    check_records(len(records), payload)


@settings(max_examples=400)
@given(batches, st.randoms(use_true_random=False))
def test_damaged_ones_are_refused_just_when_the_walk_refuses_them(
    records: list[Record], chance: random.Random
) -> None:
    batch = batch_of(records)
    payload = bytearray(payload_of(batch, read_header(batch), LIMIT))
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(payload))
        match chance.randrange(3):
            case 0:
                payload[at] = chance.randrange(256)
            case 1:
                payload[at] ^= 1 << chance.randrange(8)
            case _:
                del payload[at : at + chance.randint(1, 4)]
                if not payload:
                    payload = bytearray(b"\0")
    damaged = bytes(payload)
    assert is_accepted(len(records), damaged) == is_walked(batch, damaged)


@pytest.mark.parametrize("count", [1, 63, 64, 65, 200, 8191, 8192, 8193, 9000])
def test_long_runs_cross_the_widths_of_an_offset_delta(count: int) -> None:
    batch = batch_of([Record(at, NOW + at // 9, b"k", b"value") for at in range(count)])
    payload = payload_of(batch, read_header(batch), LIMIT)
    check_records(count, payload)
    for wrong in (count - 1, count + 1):
        assert not is_accepted(wrong, payload)
    assert not is_accepted(count, payload[:-1])
    assert not is_accepted(count, payload + b"\0")


@pytest.mark.parametrize("at", [0, 7, 40, 63, 64, 90])
def test_an_offset_inside_a_run_that_is_not_the_next_is_refused(at: int) -> None:
    records = [Record(index, NOW, None, b"v") for index in range(100)]
    batch = batch_of(records)
    payload = bytearray(payload_of(batch, read_header(batch), LIMIT))
    place = list(walk(read_header(batch), bytes(payload)))[at]
    delta_at = place[2] - 1 - (1 if at < 64 else 2)  # before the key's length of one byte
    payload[delta_at] ^= 0x02
    assert not is_accepted(100, bytes(payload))


def _spread(draw: st.DrawFn) -> list[int]:
    """Timestamps of a batch: alike, in order, or in any order; close together or years apart."""
    width = draw(st.sampled_from((1, 30, 60, 70, 500, 8_000, 9_000, 70_000, 1 << 33, 1 << 50)))
    count = draw(st.integers(1, 40))
    times = draw(st.lists(st.integers(0, width), min_size=count, max_size=count))
    kind = draw(st.sampled_from(("sorted", "alike", "any")))
    if kind == "alike":
        times = times[:1] * count
    return sorted(times) if kind == "sorted" else times


@given(st.composite(_spread)(), st.sampled_from((0, 1, 2)), st.integers(-3, 3))
@settings(max_examples=500, deadline=None)
def test_timestamps_are_compared_with_what_is_claimed(
    times: list[int], varied: int, off: int
) -> None:
    records = [
        Record(at, NOW + time, None, bytes(3 + (at % 7) * varied)) for at, time in enumerate(times)
    ]
    payload = build_batch(records, base_offset=0, last_offset=len(records) - 1)[HEADER_SIZE:]
    deltas = [time - times[0] for time in times]
    is_right = check_records(len(records), bytes(payload), max(deltas) + off)
    assert is_right == (off == 0)
    none_before = check_records(len(records), bytes(payload), max(deltas), none_before=True)
    assert none_before == (min(deltas) >= 0)
