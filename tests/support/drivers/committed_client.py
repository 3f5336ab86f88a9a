"""A consumer with isolation.level=read_committed, without a connection: straight from a log."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from heapq import heapify, heappop

from moldau.broker.errors import StoreFault
from moldau.broker.log.partition import PartitionLog
from moldau.broker.store.aborted import AbortedTransaction
from moldau.broker.store.pipe import resolve
from moldau.broker.wire.batch import CONTROL, TRANSACTIONAL, Buffer, read_header, split_batches
from moldau.broker.wire.control import read_end_marker
from moldau.broker.wire.records import Record, read_records


async def read_committed(
    log: PartitionLog, offset: int = 0, limit: int = 1 << 20, *, from_store: bool = True
) -> list[Record]:
    """Everything up to the last stable offset, one fetch after the other."""
    records: list[Record] = []
    is_current = False
    while True:
        batches: list[memoryview] = []
        offset = max(offset, log.start)  # with auto.offset.reset=earliest
        if offset < log.bounds()[3]:
            batches, aborted = await _Fetch(log, offset, limit).run(from_store=from_store)
        if batches:
            records += [each for each in visible(batches, aborted) if each.offset >= offset]
            offset = read_header(batches[-1]).next_offset
            is_current = False
        elif is_current and log.reader.clean.end <= log.bounds()[3]:
            return records
        else:
            # It may be compacted beyond what is known of it: a consumer waits for more.
            await log.current()
            is_current = True


class _Fetch:
    """Records, and the aborted transactions among them, as `DelayedFetch` gets them."""

    def __init__(self, log: PartitionLog, offset: int, limit: int) -> None:
        self._log = log
        self._offset = offset
        self._limit = limit
        self._answer: asyncio.Future[tuple[list[memoryview], list[AbortedTransaction]] | None]

    async def run(self, *, from_store: bool) -> tuple[list[memoryview], list[AbortedTransaction]]:
        reader = self._log.committed
        answer = None
        while answer is None:  # the log was trimmed or compacted meanwhile
            self._answer = asyncio.get_running_loop().create_future()
            words = (self._offset, self._limit)
            tail = None if from_store else reader.read_tail(*words, at_least_one=True)
            if tail is None:
                reader.read_store(*words, at_least_one=True, done=self._read)
            else:
                self._read(tail)
            answer = await self._answer
        return answer

    def _read(self, got: list[Buffer] | StoreFault) -> None:
        if isinstance(got, StoreFault):
            resolve(self._answer, got)
            return
        batches = [batch for part in got for batch in split_batches(part)]
        if not batches or not self._log.has_aborted:
            resolve(self._answer, (batches, []))
            return
        end = read_header(batches[-1]).next_offset
        self._log.find_aborted(self._offset, end, partial(self._listed, batches))

    def _listed(
        self, batches: list[memoryview], aborted: list[AbortedTransaction] | StoreFault | None
    ) -> None:
        if aborted is None or isinstance(aborted, StoreFault):
            resolve(self._answer, aborted)
        else:
            resolve(self._answer, (batches, aborted))


def visible(batches: Sequence[Buffer], aborted: Sequence[AbortedTransaction]) -> list[Record]:
    """What a client returns of a fetch: by the list of aborted transactions, and the markers."""
    coming = [(each.first, each.producer_id) for each in aborted]
    heapify(coming)
    hidden: set[int] = set()
    records = []
    for batch in batches:
        header = read_header(batch)
        while coming and coming[0][0] < header.next_offset:
            hidden.add(heappop(coming)[1])
        if header.attributes & CONTROL:
            if not read_end_marker(batch).commit:
                hidden.discard(header.producer_id)
        elif not (header.attributes & TRANSACTIONAL and header.producer_id in hidden):
            records += read_records(batch, 1 << 30)
    return records
