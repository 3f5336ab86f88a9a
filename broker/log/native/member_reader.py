"""Reading a native partition for a member of a group: XREADGROUP, so that Redis shows the reading.

`ReaderSelection` decides which reader serves a Fetch: a member's, or the common one.

The member's first Fetch creates the group in Redis, at the entry before its fetch offset; what
other members left pending is claimed for this one. From then on entries are read with `>` as long
as the fetch offset is the group's position, which is checked with every read. Where it is not (a
seek, a restart from the committed offset, another client that reads in this group's name) the fetch
offset wins: the group is moved there and read again. Entries that did not fit the response are
given back.
"""

from __future__ import annotations

import logging
from typing import Any

from moldau.broker.errors import StoreFault
from moldau.broker.log.log import FetchClient, FetchReader, ReadDone
from moldau.broker.log.native.group_assignments import AssignedPartition, GroupAssignments, Owner
from moldau.broker.log.native.stream_reader import StreamReader, to_batches
from moldau.broker.store.native import (
    Expected,
    NativeStreams,
    RawEntries,
    is_no_group,
)
from moldau.broker.store.stream_commands import is_busy_group

logger = logging.getLogger("moldau.log")

MAX_STRANGERS = 1_000  # of a partition, remembered as members of no group


class MemberReader:
    """One member's reading of one partition (a `FetchReader`), in this worker's memory only."""

    def __init__(self, reader: StreamReader, native: NativeStreams, owner: Owner) -> None:
        self._reader = reader
        self._native = native
        self.owner = owner
        self._stands_at: int | None = None  # the group's position; None: not created yet
        self._busy = False

    def is_at_end(self, offset: int) -> bool:
        """Not before the member's first fetch has created the group in Redis, even at the end."""
        return self._reader.is_at_end(offset) and self._stands_at == offset

    def read_tail(self, offset: int, limit: int, *, at_least_one: bool) -> None:
        """Nothing is cached."""
        return

    def read_store(self, offset: int, limit: int, *, at_least_one: bool, done: ReadDone) -> None:
        """Read as StreamReader does, and mark the entries as read in Redis."""
        if self._busy:
            # Two fetches at once: served all the same, without marking.
            self._reader.read_store(offset, limit, at_least_one=at_least_one, done=done)
            return
        self._busy = True
        _Read(self, self._reader, self._native, offset, limit, at_least_one, done).start()

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
        member_reader: MemberReader,
        reader: StreamReader,
        native: NativeStreams,
        offset: int,
        limit: int,
        at_least_one: bool,
        done: ReadDone,
    ) -> None:
        self._member_reader = member_reader
        self._reader = reader
        self._log = reader.view
        self._native = native
        self._group, self._member = member_reader.owner
        self._offset = offset
        self._first = reader.view.numbering.start_at(offset).first
        self._limit = limit
        self._at_least_one = at_least_one
        self._done = done
        self._moved = False
        self._made = False
        self._ahead = False

    def start(self) -> None:
        stands_at = self._member_reader.stands_at
        if stands_at is None:
            self._make_group()
        elif stands_at == self._offset:
            self._read()
        else:
            self._move()

    # --- the group's position ---

    def _make_group(self) -> None:
        self._made = True
        before = bytes(self._first.before)
        self._native.create_group(self._log.key, self._group, before, self._group_made)

    def _group_made(self, reply: Any) -> None:
        if is_busy_group(reply):
            # This member reads the partition now: claim what others left pending.
            self._native.take_over(self._log.key, self._group, self._member, self._taken_over)
        elif isinstance(reply, StoreFault):
            self._fail(reply)
        else:
            self._read()

    def _taken_over(self, reply: Any) -> None:
        if isinstance(reply, StoreFault):
            self._fail(reply)
        else:
            self._move()

    def _move(self) -> None:
        self._moved = True
        first, before = bytes(self._first), bytes(self._first.before)
        self._native.move_group(self._log.key, self._group, first, before, self._group_moved)

    def _group_moved(self, reply: Any) -> None:
        if is_no_group(reply) and not self._made:
            self._make_group()
        elif isinstance(reply, StoreFault):
            self._fail(reply)
        else:
            self._read()

    # --- its entries ---

    def _read(self) -> None:
        count = self._reader.count_for(self._limit)
        self._native.read_group(
            self._log.key,
            self._log.base,
            self._group,
            self._member,
            bytes(self._first),
            count,
            self._limit,
            self._got,
        )

    def _got(self, entries: RawEntries | StoreFault, expected: Expected | StoreFault) -> None:
        if is_no_group(entries) and not self._made:
            self._make_group()
            return
        if isinstance(entries, StoreFault):
            self._fail(entries)
            return
        if isinstance(expected, StoreFault):
            self._fail(expected)
            return
        if expected.marks > len(self._log.numbering.noted):
            self._log.learn_marks(self._marks_learned)
        elif expected.first != (entries[0][0] if entries else None):
            if self._moved:
                # Another client moves it at this very moment. Deliver, and mark nothing.
                logger.warning("%r: group %s has another reader", self._log, self._group)
                self._plain()
            else:
                self._move()
        else:
            self._deliver(entries)

    def _marks_learned(self, fault: StoreFault | None) -> None:
        if fault is not None:
            self._fail(fault)
        else:
            self._first = self._log.numbering.start_at(self._offset).first
            self._move()

    def _deliver(self, entries: RawEntries) -> None:
        run = self._log.numbering.start_at(self._offset)
        field, one = self._reader.value_field, self._at_least_one
        found = to_batches(entries, run, field, self._limit, at_least_one=one)
        if found.taken < len(entries):
            surplus = [raw for raw, _ in entries[found.taken :]]
            last = entries[found.taken - 1][0] if found.taken else bytes(self._first.before)
            self._native.give_back(self._log.key, self._group, last, surplus)
        self._member_reader.finished(found.last_offset + 1 if found.taken else self._offset)
        self._reader.deliver(run, found, self._done)

    def _plain(self) -> None:
        self._member_reader.finished(None)
        self._reader.read_store(
            self._offset, self._limit, at_least_one=self._at_least_one, done=self._done
        )

    def _fail(self, fault: StoreFault) -> None:
        self._member_reader.finished(None)
        self._done(fault)


class ReaderSelection:
    """The members of groups that this worker serves with one partition."""

    def __init__(
        self,
        reader: StreamReader,
        native: NativeStreams,
        group_assignments: GroupAssignments,
        partition: AssignedPartition,
    ) -> None:
        self._reader = reader
        self._native = native
        self._readership = group_assignments
        self._partition = partition
        self._by_group: dict[str, MemberReader] = {}
        # Clients that are no group's member, according to the store: client id and host.
        self._strangers: set[tuple[str, str]] = set()

    def knows(self, client: FetchClient) -> bool:
        """Is it known which member this is, or that it is none?"""
        who = (client.client_id, client.client_host)
        return (
            who in self._strangers
            or self._readership.members.owner(self._partition, *who) is not None
        )

    async def find(self, client: FetchClient) -> None:
        """A new client may have become a member a moment ago: the store knows."""
        if not await self._readership.try_load():
            return
        if len(self._strangers) >= MAX_STRANGERS:
            self._strangers.clear()
        self._strangers.add((client.client_id, client.client_host))

    def reader_for(self, client: FetchClient) -> FetchReader:
        """The reader of the member that the client must be, if that is certain."""
        owner = self._readership.members.owner(
            self._partition, client.client_id, client.client_host
        )
        if owner is None:
            return self._reader
        found = self._by_group.get(owner.group)
        if found is None or found.owner != owner:
            found = self._by_group[owner.group] = MemberReader(self._reader, self._native, owner)
        return found

    def group_changed(self, group_id: str) -> None:
        """What is remembered of one member's reading does not hold for another."""
        self._by_group.pop(group_id, None)
        self._strangers.clear()
