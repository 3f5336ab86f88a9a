"""Reading for read_committed consumers: up to the last stable offset, no record is looked at.

They skip the records of aborted transactions themselves: a Fetch lists those that reach into what
it returns, from the fold, or for what lies far back from the store.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from broker.errors import StoreFault
from broker.log.log import AbortedFound, ReadDone
from broker.log.transactions import overlapping
from broker.store.aborted import AbortedTransaction
from broker.store.streams import Streams
from broker.wire.batch import Buffer

if TYPE_CHECKING:
    from broker.log.reader import LogReader

PAGE = 1000


class CommittedReader:
    """A `FetchReader` beside the log's own one."""

    def __init__(self, reader: LogReader, streams: Streams) -> None:
        self._reader = reader
        self._streams = streams

    def is_at_end(self, offset: int) -> bool:
        return offset >= self._reader.stable_end

    def read_tail(self, offset: int, limit: int, *, at_least_one: bool) -> list[Buffer] | None:
        reader = self._reader
        return reader.read_tail(offset, limit, at_least_one=at_least_one, end=reader.stable_end)

    def read_store(self, offset: int, limit: int, *, at_least_one: bool, done: ReadDone) -> None:
        # As it is now: what is appended meanwhile may open a transaction.
        end = self._reader.stable_end
        self._reader.read_store(offset, limit, at_least_one=at_least_one, done=done, end=end)

    # --- aborted transactions ---

    def find_aborted(self, offset: int, end: int, done: AbortedFound) -> None:
        # Compaction has dropped the batches of aborted transactions, and all markers. One that was
        # listed without its marker would hide the producer's later records from the consumer.
        offset = max(offset, self._reader.clean.end)
        found = self._reader.state.transactions.aborted_within(offset, end)
        if found is not None:
            done(found)
        else:
            _StoredAborted(self._reader, self._streams, offset, end, done).read_on(offset)


class _StoredAborted:
    """Reads aborted transactions from the store, up to those that are in memory."""

    def __init__(
        self, reader: LogReader, streams: Streams, offset: int, end: int, done: AbortedFound
    ) -> None:
        self._transactions = reader.state.transactions
        self._key = reader.key
        self._streams = streams
        self._offset = offset
        self._end = end
        self._done = done
        self._found: list[AbortedTransaction] = []

    def read_on(self, marker: int) -> None:
        self._streams.aborted_from(self._key, marker, PAGE, self._take)

    def _take(self, stored: list[AbortedTransaction] | StoreFault) -> None:
        if isinstance(stored, StoreFault):
            self._done(stored)
            return
        held_from = self._transactions.held_from
        self._found += (each for each in stored if each.marker < held_from)
        if len(stored) == PAGE and stored[-1].marker < held_from and stored[-1].stable < self._end:
            self.read_on(stored[-1].marker + 1)
            return
        held = (each for each in self._transactions.aborted if each.marker >= self._offset)
        self._done(overlapping(chain(self._found, held), self._end))
