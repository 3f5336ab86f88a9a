"""A broker that compacts all the time, records for it, and when it is done with them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from tests.support.brokers.running import Broker, running_broker, wait_until
from tests.support.raw.calls import (
    StoredLog,
    read_all,
)
from tests.support.raw.client import RawClient, make_batch

QUICK = {"log.retention.check.interval.ms": 100, "log.cleaner.backoff.ms": 100}
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
PATIENCE_S = 30.0


@contextlib.contextmanager
def compacting_broker() -> Iterator[Broker]:
    """Two workers that look for something to compact ten times a second."""
    with running_broker(unsaid=("Traceback", "hole"), workers=2, broker=QUICK) as broker:
        yield broker


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def produce(
    client: RawClient, topic: str, *pairs: tuple[str, str | None], at: int | None = None
) -> int:
    """One batch, in an entry of its own; its base offset."""
    when = now_ms() if at is None else at
    records = [(key.encode(), None if v is None else v.encode(), when) for key, v in pairs]
    answer = client.produce(topic, make_batch(records))
    assert answer.error_code == 0
    return answer.base_offset


def offsets(client: RawClient, topic: str, start: int = 0) -> list[int]:
    return [record.offset for record in read_all(client, topic, start)]


def wait_offsets(client: RawClient, topic: str, expected: list[int], start: int = 0) -> None:
    """A worker that did not do it itself hears of a pass a moment later."""
    wait_until(lambda: offsets(client, topic, start) == expected, PATIENCE_S, f"{expected} left")


def wait_compacted(stored: StoredLog, end: int) -> None:
    """Wait until everything below `end` was cleaned and the old streams are gone."""
    wait_until(
        lambda: stored.part.end >= end and stored.generations == [stored.clean_key],
        PATIENCE_S,
        f"compacted up to offset {end}",
    )
