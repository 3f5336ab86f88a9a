"""The map from keys to their newest offsets that a compaction pass is made with."""

from __future__ import annotations

import random
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.broker.log.keeping.cleaning import KeyMap
from moldau.broker.wire.batch import (
    CorruptBatch,
)
from moldau.broker.wire.codecs import GZIP, OutputTooLarge
from moldau.broker.wire.records import Record
from tests.unit.log.cleaning import (
    LIMIT,
    NOW,
    RETENTION,
    batch_of,
    clean,
    examples,
    log_of,
    note,
    noted,
    records_of,
)


def test_a_map_without_room_says_so() -> None:
    log = log_of([(b"a", b"1"), (b"b", b"1")], [(b"b", b"2"), (b"c", b"1")])
    keys = KeyMap(3)
    assert note(keys, log[0], LIMIT)
    assert not note(keys, log[1], LIMIT)
    assert len(keys) == 2
    assert keys.last_offset == 1
    assert keys.newest(b"b") == 1
    assert keys.newest(b"c") == -1


def test_the_first_batch_always_has_room() -> None:
    log = log_of([(b"%d" % n, b"1") for n in range(50)], [(b"x", b"1")])
    keys = KeyMap(0)
    assert note(keys, log[0], LIMIT)
    assert len(keys) == 50
    assert not note(keys, log[1], LIMIT)


@examples(60)
@given(st.lists(st.lists(st.binary(max_size=20) | st.none(), min_size=1, max_size=20), max_size=5))
def test_the_map_is_a_map(batches: list[list[bytes | None]]) -> None:
    log = log_of(*([(key, b"") for key in batch] for batch in batches))
    model = {record.key: record.offset for record in records_of(log) if record.key is not None}
    keys = noted(log, capacity=sum(map(len, batches)))
    assert len(keys) == len(model)
    assert {key: keys.newest(key) for key in model} == model
    assert keys.newest(b"a key that no batch has") == -1


def test_a_full_map_of_many_keys() -> None:
    count = 20_000
    order = random.Random(1).sample(range(count), count)
    log = log_of(*([(b"user-%d" % n, b"")] for n in order[:1000]))
    log += [batch_of([Record(1000 + n, NOW, b"user-%d" % k, b"") for n, k in enumerate(order)])]
    keys = noted(log, capacity=count + 1000)
    assert len(keys) == count
    assert all(keys.newest(b"user-%d" % k) == 1000 + n for n, k in enumerate(order))


def test_the_map_is_as_small_as_it_says() -> None:
    keys = KeyMap(100_000)
    size = sum(sys.getsizeof(part) for part in vars(keys).values())
    assert size / 100_000 < 36.1


def test_nothing_is_noted_of_a_damaged_batch() -> None:
    (batch,) = log_of([(b"a", b"1"), (b"b", b"1")])
    damaged = bytes(batch[:-1]) + b"\x7f"  # the second record's headers
    keys = KeyMap(10)
    with pytest.raises(CorruptBatch):
        note(keys, damaged, LIMIT)
    assert len(keys) == 0
    assert keys.last_offset == -1
    with pytest.raises(CorruptBatch):
        clean(damaged, noted([batch]), now_ms=NOW, delete_retention_ms=RETENTION, limit=LIMIT)


def test_a_batch_over_the_limit() -> None:
    (batch,) = log_of([(b"a", bytes(10_000))], codec=GZIP)
    with pytest.raises(OutputTooLarge):
        note(KeyMap(10), batch, 9000)
