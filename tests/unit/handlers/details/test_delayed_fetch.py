"""A read_committed Fetch whose aborted transactions are looked up in the store."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from moldau.broker.errors import ErrorCode, StoreUnavailable
from moldau.broker.handlers.details.delayed_fetch import READ_COMMITTED, DelayedFetch, PartitionRead
from moldau.broker.metrics.log_counters import LogCounters, TopicCounters
from moldau.broker.metrics.request_counters import RequestCounters
from moldau.broker.store.aborted import AbortedTransaction
from moldau.broker.wire.messages.fetch import FetchRequest
from tests.support.drivers.transactional import transactional_batch

BATCH = bytes(transactional_batch(7, 0, [b"aborted"]))
ABORTED = AbortedTransaction(1, 0, 7, 2)


class FakeLog:
    """Has a batch, and is asked which transactions were aborted."""

    leader_epoch = 0
    is_loaded = True
    has_aborted = True
    bytes_stable = len(BATCH)

    def __init__(self) -> None:
        self.waiters = SimpleNamespace(add=lambda *_: None, discard=lambda *_: None)
        self.asked: list[Any] = []
        self.counters = TopicCounters()

    def can_read(self, offset: int, client: object) -> bool:
        return True

    def bounds(self) -> tuple[int, int, int, int]:
        return 0, 2, 2, 2

    def reader_for(self, client: object) -> FakeLog:
        return self

    def is_at_end(self, offset: int) -> bool:
        return False

    def read_tail(self, offset: int, limit: int, *, at_least_one: bool) -> list[bytes]:
        return [BATCH]

    def find_aborted(self, offset: int, end: int, done: Any) -> None:
        self.asked.append(done)

    def look(self) -> None: ...


class Fetching:
    """One Fetch of one log, and its reply."""

    def __init__(self, log: FakeLog, *, max_wait_ms: int, min_bytes: int) -> None:
        budget = SimpleNamespace(reply_room=1 << 20)
        connection = SimpleNamespace(budget=budget, closing=False, counters=RequestCounters())
        call: Any = SimpleNamespace(
            connection=connection, on_lost=None, is_metered=False, received_ns=0
        )
        broker: Any = SimpleNamespace(
            fetch_max_bytes=1 << 20,
            settings=SimpleNamespace(workers=1),
            parked=set(),
            logs=SimpleNamespace(watch=lambda log: None, counters=LogCounters()),
        )
        self.read = PartitionRead(0, 1 << 20)
        self.read.log = log  # type: ignore[assignment]
        self.replied = asyncio.Event()
        request = FetchRequest(
            isolation_level=READ_COMMITTED,
            max_bytes=1 << 20,
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
        )
        self.fetch = DelayedFetch(broker, call, request, [self.read], self._reply)
        self.fetch.start()

    def _reply(self, *_: object) -> None:
        self.replied.set()


async def test_records_are_sent_with_their_list() -> None:
    log = FakeLog()
    fetching = Fetching(log, max_wait_ms=500, min_bytes=1)
    assert not fetching.replied.is_set()
    log.asked.pop()([ABORTED])
    assert fetching.replied.is_set()
    assert fetching.read.records == [BATCH]
    assert fetching.read.aborted == [ABORTED]


async def test_a_wait_that_ends_before_the_list_is_there_returns_no_records() -> None:
    log = FakeLog()
    fetching = Fetching(log, max_wait_ms=50, min_bytes=1000)
    log.asked.pop()([ABORTED])
    assert fetching.read.records == [BATCH], "not enough: it waits"
    log.bytes_stable += 1000
    fetching.fetch._woken()
    more = log.asked.pop()
    await asyncio.wait_for(fetching.replied.wait(), 5)
    assert fetching.read.records == [BATCH]
    assert fetching.read.aborted == [ABORTED], "of the records that were read with it"
    more([])

    log = FakeLog()
    fetching = Fetching(log, max_wait_ms=0, min_bytes=1)
    fetching.fetch.finish()
    assert not fetching.read.records


async def test_a_log_that_was_compacted_meanwhile_is_read_again() -> None:
    log = FakeLog()
    fetching = Fetching(log, max_wait_ms=500, min_bytes=1)
    log.asked.pop()(None)
    assert not fetching.replied.is_set()
    log.asked.pop()([])
    assert fetching.replied.is_set()
    assert fetching.read.records == [BATCH]


async def test_without_the_list_there_are_no_records() -> None:
    log = FakeLog()
    fetching = Fetching(log, max_wait_ms=500, min_bytes=1)
    log.asked.pop()(StoreUnavailable("down"))
    assert fetching.replied.is_set()
    assert not fetching.read.records
    assert fetching.read.error == ErrorCode.KAFKA_STORAGE_ERROR
    assert fetching.read.bounds == (0, 2, 2, 2)
