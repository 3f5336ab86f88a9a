"""What this worker knows of a native stream: where it starts and ends, and how offsets run in it.

Any Redis client may append at any time, so the end is read again for every use unless the worker is
notified of every entry (`Watcher`). Irregular offsets (`Mark`, see ids.py) are noted beside the
stream for all workers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from moldau.broker.errors import Callback, StoreFault, StoreFull, StoreRefused
from moldau.broker.log.callbacks import Completion, await_callback
from moldau.broker.log.log import Waiters, topic_gone
from moldau.broker.log.native.ids import Numbering, Run, parse_mark
from moldau.broker.store.native import Bounds, NativeStreams, RawEntries
from moldau.broker.store.stream_ids import Id, parse, too_large
from moldau.broker.store.streams import Streams

logger = logging.getLogger("moldau.log")

MAX_ENTRIES_PER_READ = 1_000  # they keep a worker busy for some 4 ms
FIRST_GUESS = 512  # bytes of an entry, before any was read


class ViewHost(Protocol):
    """What a native log needs of the worker it lives in."""

    streams: Streams
    native: NativeStreams

    def spawn(self, work: Coroutine[Any, Any, None]) -> None: ...
    def store_full(self, fault: StoreFull) -> None: ...


class NativeView:
    """See the module."""

    def __init__(
        self, host: ViewHost, name: str, stream: bytes, base: bytes, bits: int, waiters: Waiters
    ) -> None:
        self.host = host
        self.key = stream
        self.base = base
        self.numbering = Numbering(bits)
        self.start = 0  # log start offset
        self.first = 0  # offset of the first entry
        self.end = 0
        self.last_id = Id(0, 0)
        self.bytes_known = 0
        self.added = 0  # entries, ever, when the bounds were read last
        self.average_size = 0  # of the entries read last, in bytes; 0: none was read yet
        self.is_loaded = False
        self.is_gone = False
        self.is_followed = False  # this worker is notified of what others add to the stream
        self._name = name
        self._waiters = waiters
        self._asking: list[Completion] = []  # called when the reply is here
        self._ask_next: list[Completion] = []  # the request in flight may miss what these know of
        self._misfits = 0

    def __repr__(self) -> str:
        return self._name

    @property
    def is_plain(self) -> bool:
        """Does the end follow from the last id? Not when offsets have moved up (see ids.py)."""
        return not self.numbering.noted and self.numbering.fits(self.last_id)

    # --- bounds ---

    def when_loaded(self, done: Completion) -> None:
        if self.is_gone:
            done(topic_gone())
        elif self.is_loaded:
            done(None)
        else:
            self.when_current(done)

    def when_current(self, done: Completion) -> None:
        """Call `done` once everything that is in the stream now is known of."""
        if self.is_gone:
            done(topic_gone())
        elif self._asking:
            self._ask_next.append(done)
        else:
            self._asking = [done]
            self.host.spawn(self._ask())

    async def current(self) -> None:
        await await_callback(self.when_current)

    def look(self) -> None:
        if self.is_loaded and not self._asking:
            self.when_current(lambda fault: None)

    async def _ask(self) -> None:
        fault: BaseException | None = None
        try:
            await self.host.native.ensure_library()
            bounds = await self.read_bounds()
            self._check_range(parse(bounds.last))
            if bounds.marks != len(self.numbering.noted):
                await self._load_marks()
            await self._mark_last(parse(bounds.last))
            self._learn(bounds)
        except StoreFault as failure:
            fault = failure
        except Exception as failure:
            # A fault of ours. Those that wait must get it, or would wait forever.
            logger.exception("%r: its bounds cannot be read", self)
            fault = failure
        asking, self._asking = self._asking, []
        if self._ask_next:
            self._asking, self._ask_next = self._ask_next, []
            self.host.spawn(self._ask())
        for done in asking:
            done(topic_gone() if self.is_gone else fault)

    def _check_range(self, last: Id) -> None:
        if too_large(last, self.numbering.bits):
            where = self.key.decode("utf-8", "replace")
            bits = self.numbering.bits
            text = f"{where}: id {last.ms}-{last.seq} is too large for an offset with {bits} bits"
            logger.error("%r cannot be read: %s", self, text)
            raise StoreRefused(text)

    async def read_bounds(self) -> Bounds:
        def ask(done: Callback[Bounds]) -> None:
            self.host.native.bounds(self.key, self.base, done)

        return await await_callback(ask)

    def _learn(self, bounds: Bounds) -> None:
        end_before = self.end
        self.last_id = max(self.last_id, parse(bounds.last))
        self.end = max(self.end, self.numbering.end_after(self.last_id))
        self.first = self.numbering.offset_from(parse(bounds.first)) if bounds.first else self.end
        self.start = bounds.start
        self.added = bounds.added
        self.is_loaded = True
        if self.end > end_before:
            self.bytes_known += self.average_size or FIRST_GUESS
            self._waiters.wake()

    def received(self, entries: RawEntries) -> None:
        """Entries from the watcher."""
        newest = parse(entries[-1][0])
        if too_large(newest, self.numbering.bits):
            self.is_loaded = False  # the next request reads the bounds again and gets the error
            self._waiters.wake()
            return
        self.bytes_known += sum(sum(map(len, fields)) for _, fields in entries)
        if newest > self.last_id:
            self.last_id = newest
            self.end = max(self.end, self.numbering.end_after(newest))
        self._waiters.wake()

    # --- irregular offsets ---

    async def _load_marks(self) -> None:
        found = await self.host.native.marks(self.base)
        self.numbering.note([parse_mark(raw) for raw in found])

    async def _mark_last(self, last: Id) -> None:
        """Note the offset of the last entry, as a consumer may start at the end.

        It follows from the entries before it, so these are numbered first, as every reader will
        number them.
        """
        numbering, native = self.numbering, self.host.native
        if numbering.fits(last) or numbering.mark_of(last) is not None:
            return
        offset = numbering.marks[-1].offset if numbering.marks else 0
        run = numbering.start_at(offset)
        at = run.first
        while at <= last:
            entries = await native.entries(self.key, bytes(at), MAX_ENTRIES_PER_READ)
            for raw, _ in entries:
                if (entry_id := parse(raw)) <= last:
                    run.offset_of(entry_id)
            if len(entries) < MAX_ENTRIES_PER_READ:
                break
            at = parse(entries[-1][0]).after
        await self.note(run)

    def learn_marks(self, done: Callable[[StoreFault | None], None]) -> None:
        """Another worker has noted marks: a read without them could skip entries."""

        async def learn() -> None:
            try:
                await self._load_marks()
            except StoreFault as fault:
                done(fault)
            else:
                done(None)

        self.host.spawn(learn())

    async def note(self, run: Run) -> None:
        """Save irregular offsets, before a client gets them."""
        self._misfits += run.misfits
        fresh = [mark for mark in run.marks if mark not in self.numbering.noted]
        if not fresh:
            return
        await self.host.native.add_marks(self.base, map(bytes, fresh))
        self.numbering.note(fresh)
        if run.misfits:
            logger.warning(
                "%r: entries of %s have sequences over %d bits; they are delivered with offsets "
                "of later milliseconds (%d so far)",
                self,
                self.key.decode("utf-8", "replace"),
                self.numbering.bits,
                self._misfits,
            )

    # --- the end ---

    def gone(self) -> None:
        self.is_gone = True
        self.is_loaded = False
        self._waiters.wake()
