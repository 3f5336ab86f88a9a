"""Logs in memory for tests of compaction: made of batches, noted, cleaned, read."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, TypeVar

from hypothesis import settings

from moldau.broker.log.keeping import cleaning
from moldau.broker.log.keeping.cleaning import KeyMap
from moldau.broker.wire.batch import (
    Buffer,
)
from moldau.broker.wire.records import Record, build_batch, read_records

LIMIT = 1 << 24
NOW = 1_700_000_000_000
RETENTION = 86_400_000

Log = list[Buffer]
T = TypeVar("T")


def examples(count: int) -> settings:
    """How many to draw; without a deadline for each, which a busy machine would miss."""
    return settings(max_examples=count, deadline=None)


def batch_of(records: list[Record], **options: Any) -> bytearray:
    options.setdefault("base_offset", records[0].offset)
    options.setdefault("last_offset", records[-1].offset)
    return build_batch(records, **options)


def log_of(*batches: Sequence[tuple[bytes | None, bytes | None]], **options: Any) -> Log:
    """A log of batches of keys and values, with dense offsets from 0 on."""
    log: Log = []
    offset = 0
    for batch in batches:
        records = [
            Record(offset + n, NOW - 1000 + n, key, value) for n, (key, value) in enumerate(batch)
        ]
        log.append(batch_of(records, **options))
        offset += len(batch)
    return log


def take_all_steps(steps: Generator[None, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def note(keys: KeyMap, batch: Buffer, limit: int) -> bool:
    return take_all_steps(keys.note(batch, limit))


def clean(batch: Buffer, keys: KeyMap, **options: Any) -> Buffer | None:
    return take_all_steps(cleaning.clean(batch, keys, **options))


def noted(log: Log, capacity: int = 1000) -> KeyMap:
    keys = KeyMap(capacity)
    for batch in log:
        assert note(keys, batch, LIMIT)
    return keys


def cleaned(log: Log, *, now: int = NOW, retention: int = RETENTION) -> Log:
    keys = noted(log)
    left = (
        clean(batch, keys, now_ms=now, delete_retention_ms=retention, limit=LIMIT) for batch in log
    )
    return [batch for batch in left if batch is not None]


def records_of(log: Log) -> list[Record]:
    return [record for batch in log for record in read_records(batch, LIMIT)]


def table_of(log: Log) -> dict[bytes, bytes]:
    """What a consumer that reads all of the log into a table ends up with."""
    table: dict[bytes, bytes] = {}
    for record in records_of(log):
        if record.key is None:
            continue
        if record.value is None:
            table.pop(record.key, None)
        else:
            table[record.key] = record.value
    return table
