"""Reading for read_committed consumers: up to the last stable offset, no record is looked at.

Clients skip the records of aborted transactions themselves: a Fetch lists the transactions that
reach into its records, from memory or, far back in the log, from the store.

The records and the list have to be of one layout of the log. Retention and compaction drop
transactions from the list together with their records and markers, on any worker and at any moment:
records that were read before, with a list from after it, would be returned although they were
aborted; the reverse would hide a later transaction of the same producer, as there is no marker that
ends the aborted one. So the layout is compared after each step, and if it has changed the records
are read again.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from moldau.broker.errors import StoreFault
from moldau.broker.log.log import AbortedFound, ReadDone
from moldau.broker.log.state.transactions import overlapping
from moldau.broker.store.aborted import AbortedTransaction
from moldau.broker.store.streams import Streams
from moldau.broker.wire.batch import Buffer

if TYPE_CHECKING:
    from moldau.broker.log.reading.reader import LogReader

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
        end = reader.stable_end if reader.state.transactions.open else None
        return reader.read_tail(offset, limit, at_least_one=at_least_one, end=end)

    def read_store(self, offset: int, limit: int, *, at_least_one: bool, done: ReadDone) -> None:
        reader = self._reader
        layout = reader.layout

        def finish(got: list[Buffer] | StoreFault) -> None:
            if reader.layout == layout or isinstance(got, StoreFault):
                done(got)
            else:
                self.read_store(offset, limit, at_least_one=at_least_one, done=done)

        # Read now: an append meanwhile may open a transaction.
        end = reader.stable_end
        reader.read_store(offset, limit, at_least_one=at_least_one, done=finish, end=end)

    # --- aborted transactions ---

    def find_aborted(self, offset: int, end: int, done: AbortedFound) -> None:
        """List the aborted transactions of records that were read in this turn of the loop."""
        # Compaction has dropped the batches of aborted transactions, and all markers. One that was
        # listed without its marker would hide the producer's later records from the consumer.
        offset = max(offset, self._reader.clean.end)
        found = self._reader.state.transactions.aborted_within(offset, end)
        if found is not None:
            done(found)
        else:
            _StoredAborted(self._reader, self._streams, end, done).read_on(offset)


class _StoredAborted:
    """Reads aborted transactions from the store, up to those that are in memory."""

    def __init__(self, reader: LogReader, streams: Streams, end: int, done: AbortedFound) -> None:
        self._reader = reader
        self._layout = reader.layout
        # Copied now: one that is saved and forgotten meanwhile may be missing in both.
        self._held_from = reader.state.transactions.held_from
        self._held = list(reader.state.transactions.aborted)
        self._streams = streams
        self._end = end
        self._done = done
        self._found: list[AbortedTransaction] = []
        self._page: list[AbortedTransaction] | StoreFault = []

    def read_on(self, marker: int) -> None:
        self._streams.aborted_from(self._reader.key, marker, PAGE, self._take)
        # Behind it on the same connection: has any of them been dropped by then?
        self._reader.reload_start(self._check)

    def _take(self, stored: list[AbortedTransaction] | StoreFault) -> None:
        self._page = stored

    def _check(self, fault: StoreFault | None) -> None:
        stored = self._page
        if isinstance(stored, StoreFault):
            self._done(stored)
        elif fault is not None:
            self._done(fault)
        elif self._reader.layout != self._layout:
            self._done(None)
        else:
            self._add(stored)

    def _add(self, stored: list[AbortedTransaction]) -> None:
        held_from = self._held_from
        self._found += (each for each in stored if each.marker < held_from)
        if len(stored) == PAGE and stored[-1].marker < held_from and stored[-1].stable < self._end:
            self.read_on(stored[-1].marker + 1)
        else:
            self._done(overlapping(chain(self._found, self._held), self._end))
