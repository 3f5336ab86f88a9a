"""Acquires records of one share-partition for one fetch: reads its log, and acquires in the same
turn of the event loop in which a read has ended.

While there is something else to acquire and room for it, the next read follows: up to eight from
the tail cache, one from the store. So a released record at the front does not cost a fetch of its
own. There is one read from the store at a time for a share-partition: a fetch that comes meanwhile
finds nothing, and is woken by its end.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from moldau.broker.coordinator.shares.partitions import Led, SharePartitions
from moldau.broker.errors import ErrorCode, KafkaError, StoreFault
from moldau.broker.log.log import FetchClient, Log
from moldau.broker.share.acquiring import Range
from moldau.broker.share.limits import Wish
from moldau.broker.share.spans import holding, read_of
from moldau.broker.store.aborted import AbortedTransaction
from moldau.broker.wire.batch import Buffer, CorruptBatch

READS = 8


class Taken(NamedTuple):
    """What a fetch gets of a share-partition. With an error there are no records."""

    ranges: list[Range]
    records: list[Buffer]
    """The batches that hold them, as they lie in the log."""
    error: ErrorCode = ErrorCode.NONE


Done = Callable[[Taken], None]


class ShareRead:
    """One fetch of one share-partition. `limit` are the bytes of its part of the reply; the first
    batch is returned whatever its size."""

    def __init__(
        self,
        shares: SharePartitions,
        led: Led,
        log: Log,
        client: FetchClient,
        member: str,
        wish: Wish,
        limit: int,
        done: Done,
    ) -> None:
        self._shares = shares
        self._led = led
        self._log = log
        self._client = client
        self._member = member
        self._wish = wish
        self._left = limit
        self._done = done
        self._reads = 0
        self._has_asked_store = False
        self._ranges: list[Range] = []
        self._records: list[Buffer] = []

    def start(self) -> None:
        while self._read_once():
            pass

    def _read_once(self) -> bool:
        """Read and acquire; True if another read may bring more, and nothing is waited for."""
        try:
            offset = self._wanted()
        except KafkaError as fault:
            return self._end(fault.code)
        if offset is None:
            return self._end()
        self._reads += 1
        reader = self._log.reader_for(self._client)
        is_first = not self._records
        found = reader.read_tail(offset, self._left, at_least_one=is_first)
        if found is not None:
            return self._found(offset, found)
        if self._led.is_reading or self._has_asked_store:
            return self._end()
        self._led.is_reading = self._has_asked_store = True
        done = partial(self._read_from_store, offset)
        reader.read_store(offset, self._left, at_least_one=is_first, done=done)
        return False

    def _wanted(self) -> int | None:
        """Return where to read; None if nothing more can be acquired, or there is no room."""
        led, log = self._led, self._log
        if log.start > led.machine.start:
            self._shares.log_start_moved(led, log.start)
        offset = self._shares.wanted(led)
        is_full = self._records and self._left <= 0
        if offset is None or is_full or self._reads >= READS or self._wish.max_records <= 0:
            return None
        _, _, high_watermark, last_stable = log.bounds()
        readable = last_stable if self._client.reads_committed else high_watermark
        return offset if offset < readable else None

    def _read_from_store(self, offset: int, got: list[Buffer] | StoreFault) -> None:
        self._led.is_reading = False
        if isinstance(got, StoreFault):
            self._end(ErrorCode.KAFKA_STORAGE_ERROR)
        elif self._found(offset, got):
            self.start()
        # Others found nothing meanwhile.
        self._shares.on_woken(self._led)

    def _found(self, offset: int, found: list[Buffer]) -> bool:
        if not found:
            return self._end()
        if self._client.reads_committed and self._log.has_aborted:
            try:
                end = read_of(offset, offset, found).end
            except CorruptBatch:
                return self._end(ErrorCode.KAFKA_STORAGE_ERROR)
            self._log.find_aborted(offset, end, partial(self._aborted_found, offset, found))
            return False
        return self._acquire(offset, found, ())

    def _aborted_found(
        self,
        offset: int,
        found: list[Buffer],
        aborted: list[AbortedTransaction] | StoreFault | None,
    ) -> None:
        if isinstance(aborted, StoreFault):
            self._end(ErrorCode.KAFKA_STORAGE_ERROR)
            return
        # None: the log was trimmed or compacted meanwhile, and is read again.
        listed = [(each.producer_id, each.first) for each in aborted or ()]
        if aborted is None or self._acquire(offset, found, listed):
            self.start()

    def _acquire(
        self, offset: int, found: list[Buffer], aborted: list[tuple[int, int]] | tuple[()]
    ) -> bool:
        try:
            read = read_of(offset, offset, found, aborted)
            got = self._shares.acquire(self._led, read, self._member, self._wish)
        except CorruptBatch:
            return self._end(ErrorCode.KAFKA_STORAGE_ERROR)
        except KafkaError as fault:
            return self._end(fault.code)
        if got is not None:
            records = holding(read, got.ranges)
            self._ranges += got.ranges
            self._records += records
            self._left -= sum(map(len, records))
            self._wish = self._wish._replace(max_records=self._wish.max_records - got.records)
            if got.is_alone:
                return self._end()
        following = self._shares.wanted(self._led)
        if following is not None and following < read.end:  # the rest goes with another fetch
            return self._end()
        return True

    def _end(self, error: ErrorCode = ErrorCode.NONE) -> bool:
        """Returns False. What was acquired is delivered, whatever came then."""
        if self._ranges:
            error = ErrorCode.NONE
        self._done(Taken(self._ranges, self._records, error))
        return False
