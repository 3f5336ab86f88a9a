"""Reading a native partition for a member of a group: XREADGROUP, so that Redis shows what happens.

The group is made in Redis by the member's first Fetch, at the entry before its fetch offset; what
others of the group left pending becomes this member's. From then on entries are read with `>` as
long as the fetch offset is where the group stands, which is checked with every read. Where it is
not (a seek, a restart from the committed offset, somebody else who reads in this group's name) the
fetch offset wins: the group is moved there and read from again. What could not be delivered, as a
response would have become too large, is given back.
"""

from __future__ import annotations

import logging
from typing import Any

from broker.errors import StoreFault
from broker.log.native.batching import numbered
from broker.log.native.ids import Run, parse
from broker.log.native.log import NativeLog, fitting, parsed_entries
from broker.log.native.members import Owner
from broker.log.reading import ReadDone
from broker.store.native import NativeStreams, RawEntries, is_busy_group, is_no_group
from broker.wire.records import Record

log = logging.getLogger("moldau.log")


class GroupReading:
    """One member's reading of one partition, in this worker's memory only."""

    def __init__(self, found: NativeLog, native: NativeStreams, owner: Owner) -> None:
        self._log = found
        self._native = native
        self.owner = owner
        self._stands_at: int | None = None  # fetch offset the group is at; None: not made yet
        self._busy = False

    def read_store(self, offset: int, limit: int, *, at_least_one: bool, done: ReadDone) -> None:
        """As the log's own, and marked as read in Redis."""
        run = self._log.numbering.start_at(offset)
        if self._busy or run.first != self._log.numbering.id_at(offset):
            # Two fetches at once, or offsets that are not by id: right all the same, unmarked.
            self._log.read_store(offset, limit, at_least_one=at_least_one, done=done)
            return
        self._busy = True
        _Read(self, self._log, self._native, offset, limit, at_least_one, done).start()

    @property
    def stands_at(self) -> int | None:
        return self._stands_at

    def finished(self, stands_at: int | None) -> None:
        self._busy = False
        self._stands_at = stands_at


class _Read:
    """One read, with as many steps as it takes."""

    def __init__(
        self,
        reading: GroupReading,
        found: NativeLog,
        native: NativeStreams,
        offset: int,
        limit: int,
        at_least_one: bool,
        done: ReadDone,
    ) -> None:
        self._reading = reading
        self._log = found
        self._native = native
        self._group, self._member = reading.owner
        self._offset = offset
        self._first = found.numbering.id_at(offset)
        self._limit = limit
        self._at_least_one = at_least_one
        self._done = done
        self._moved = False
        self._made = False
        self._ahead = False

    def start(self) -> None:
        stands_at = self._reading.stands_at
        if stands_at is None:
            self._make_group()
        elif stands_at == self._offset:
            self._read()
        else:
            self._move()

    # --- the group's place ---

    def _make_group(self) -> None:
        self._made = True
        before = bytes(self._first.before)
        self._native.create_group(self._log.key, self._group, before, self._group_made)

    def _group_made(self, reply: Any) -> None:
        if is_busy_group(reply):
            self._native.group_position(self._log.key, self._group, self._position_known)
        elif isinstance(reply, StoreFault):
            self._fail(reply)
        else:
            self._read()

    def _position_known(self, position: bytes | StoreFault | None) -> None:
        if isinstance(position, StoreFault):
            self._fail(position)
            return
        self._ahead = position is not None and parse(position) >= self._first
        # What its other members left pending: this one reads the partition now.
        self._native.take_over(self._log.key, self._group, self._member, self._taken_over)

    def _taken_over(self, reply: Any) -> None:
        if isinstance(reply, StoreFault):
            self._fail(reply)
        elif self._ahead:
            self._move()
        else:
            self._read()  # and see whether anything is between

    def _move(self) -> None:
        self._moved = True
        before = bytes(self._first.before)
        self._native.move_group(self._log.key, self._group, before, self._group_moved)

    def _group_moved(self, reply: Any) -> None:
        if is_no_group(reply) and not self._made:
            self._make_group()
        elif isinstance(reply, StoreFault):
            self._fail(reply)
        else:
            self._read()

    # --- its entries ---

    def _read(self) -> None:
        count = self._log.count_for(self._limit)
        first = bytes(self._first)
        self._native.read_group(self._log.key, self._group, self._member, first, count, self._got)

    def _got(self, expected: bytes | StoreFault | None, entries: RawEntries | StoreFault) -> None:
        if is_no_group(entries) and not self._made:
            self._make_group()
            return
        if isinstance(entries, StoreFault):
            self._fail(entries)
            return
        if isinstance(expected, StoreFault):
            self._fail(expected)
            return
        if expected != (entries[0][0] if entries else None):
            if self._moved:
                # Somebody else moves it as well, at this very moment. Deliver, and mark nothing.
                log.warning("%r: group %s is read by others too", self._log, self._group)
                self._plain()
            else:
                self._move()
            return
        self._deliver(entries)

    def _deliver(self, entries: RawEntries) -> None:
        numbering = self._log.numbering
        run = Run(numbering, self._first, self._offset - 1, self._offset, moved=False)
        records = numbered(parsed_entries(entries), run, self._log.value_field)
        kept = fitting(records, self._limit, at_least_one=self._at_least_one)
        if len(kept) < len(records):
            # As many entries as records: none is before the offset, that was checked.
            surplus = [raw for raw, _ in entries[len(kept) :]]
            last = entries[len(kept) - 1][0] if kept else bytes(self._first.before)
            self._native.give_back(self._log.key, self._group, last, surplus)
        self._finish(run, kept)

    def _finish(self, run: Run, records: list[Record]) -> None:
        self._reading.finished(records[-1].offset + 1 if records else self._offset)
        self._log.deliver(run, records, self._done)

    def _plain(self) -> None:
        self._reading.finished(None)
        self._log.read_store(
            self._offset, self._limit, at_least_one=self._at_least_one, done=self._done
        )

    def _fail(self, fault: StoreFault) -> None:
        self._reading.finished(None)
        self._done(fault)
