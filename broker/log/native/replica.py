"""A native stream as this worker knows it: where it begins and ends, and how offsets run in it.

Anybody may append at any time, so where the stream ends is read anew unless the worker is told of
every entry (`Watcher`); what is odd about its offsets (`Mark`, see ids.py) is noted beside it for
all workers. Reading and appending, which need both, are in log.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from broker.errors import StoreFault, StoreFull, StoreRefused
from broker.log.callbacks import Completion, settled
from broker.log.native.ids import Id, Numbering, Run, parse, parse_mark, too_large
from broker.log.replica import topic_gone
from broker.store.native import Bounds, NativeStreams, RawEntries
from broker.store.streams import Streams

log = logging.getLogger("moldau.log")

MAX_ENTRIES_PER_READ = 1_000  # so long a worker does nothing else: some 4 ms
FIRST_GUESS = 512  # bytes of an entry, before any was seen


class NativeHost(Protocol):
    """What a log needs of the worker it lives in."""

    streams: Streams
    native: NativeStreams

    def spawn(self, work: Coroutine[Any, Any, None]) -> None: ...
    def store_full(self, fault: StoreFull) -> None: ...


class Seen:
    """How much is known to have come: what a fetch that waits for bytes compares."""

    def __init__(self) -> None:
        self.size = 0


class NativeReplica:
    """See the module."""

    def __init__(
        self,
        host: NativeHost,
        topic: str,
        partition: int,
        stream: bytes,
        base: bytes,
        bits: int,
    ) -> None:
        self._host = host
        self.topic = topic
        self.partition = partition
        self.key = stream
        self.base = base
        self.numbering = Numbering(bits)
        self.state = Seen()
        self.start = 0
        self.first = 0  # offset of the first entry
        self.end = 0
        self.last_id = Id(0, 0)
        self.waiters: dict[object, Callable[[], None]] = {}
        self.is_loaded = False
        self.is_gone = False
        self.is_followed = False  # told of what others add to the stream
        self._average = 0  # bytes of an entry, of late; 0: none was seen
        self._asking: list[Completion] = []  # told when the answer is here
        self._ask_next: list[Completion] = []  # came later: what is out may miss what they know of
        self.misfits = 0

    def __repr__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def is_plain(self) -> bool:
        """Does the last id say where the log ends? Not when offsets have moved up (see ids.py)."""
        return not self.numbering.noted and self.numbering.fits(self.last_id)

    # --- where it begins and ends ---

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
            self._host.spawn(self._ask())

    async def current(self) -> None:
        await settled(self.when_current)

    async def load_start(self) -> None:
        await self.current()

    def look(self) -> None:
        if self.is_loaded and not self._asking:
            self.when_current(lambda fault: None)

    async def _ask(self) -> None:
        fault: BaseException | None = None
        try:
            await self._host.native.ensure_library()
            bounds = await self._bounds()
            self._check_range(parse(bounds.last))
            if bounds.marks != len(self.numbering.noted):
                await self._load_marks()
            await self._mark_last(parse(bounds.last))
            self._learn(bounds)
        except StoreFault as failure:
            fault = failure
        except Exception as failure:
            # A fault of ours. Whoever waits must hear of it, or would wait for ever.
            log.exception("%r: where it begins and ends is not known", self)
            fault = failure
        asking, self._asking = self._asking, []
        if self._ask_next:
            self._asking, self._ask_next = self._ask_next, []
            self._host.spawn(self._ask())
        for done in asking:
            done(topic_gone() if self.is_gone else fault)

    def _check_range(self, last: Id) -> None:
        if too_large(last, self.numbering.bits):
            where = self.key.decode("utf-8", "replace")
            bits = self.numbering.bits
            text = f"{where}: id {last.ms}-{last.seq} is too large for an offset with {bits} bits"
            log.error("%r cannot be read: %s", self, text)
            raise StoreRefused(text)

    async def _bounds(self) -> Bounds:
        future: asyncio.Future[Bounds] = asyncio.get_running_loop().create_future()

        def finish(got: Bounds | StoreFault) -> None:
            if future.done():
                return
            if isinstance(got, StoreFault):
                future.set_exception(got)
            else:
                future.set_result(got)

        self._host.native.bounds(self.key, self.base, finish)
        return await future

    def _learn(self, bounds: Bounds) -> None:
        end_before = self.end
        self.last_id = max(self.last_id, parse(bounds.last))
        self.end = max(self.end, self.numbering.end_after(self.last_id))
        self.first = self.numbering.offset_from(parse(bounds.first)) if bounds.first else self.end
        self.start = bounds.start
        self.is_loaded = True
        if self.end > end_before:
            self.state.size += self._average or FIRST_GUESS
            self.wake()

    def received(self, entries: RawEntries) -> None:
        """Entries the watcher brought."""
        newest = parse(entries[-1][0])
        if too_large(newest, self.numbering.bits):
            self.is_loaded = False  # whoever asks next is told why
            self.wake()
            return
        self.state.size += sum(sum(map(len, fields)) for _, fields in entries)
        if newest > self.last_id:
            self.last_id = newest
            self.end = max(self.end, self.numbering.end_after(newest))
        self.wake()

    def wake(self) -> None:
        waiting, self.waiters = self.waiters, {}
        for woken in waiting.values():
            woken()

    # --- what is odd about offsets ---

    async def _load_marks(self) -> None:
        found = await self._host.native.marks(self.base)
        self.numbering.note([parse_mark(raw) for raw in found])

    async def _mark_last(self, last: Id) -> None:
        """Somebody may begin at the end: what comes next is found from there.

        Where the last entry stands follows from those before it, so these are given their offsets
        first: as every reader will see them who comes along.
        """
        numbering, native = self.numbering, self._host.native
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
        """Another worker has noted some: what is read without them could leave something out."""

        async def learn() -> None:
            try:
                await self._load_marks()
            except StoreFault as fault:
                done(fault)
            else:
                done(None)

        self._host.spawn(learn())

    async def note(self, run: Run) -> None:
        """Keep what is odd about offsets, before anybody is shown them."""
        self.misfits += run.misfits
        fresh = [mark for mark in run.marks if mark not in self.numbering.noted]
        if not fresh:
            return
        await self._host.native.add_marks(self.base, map(bytes, fresh))
        self.numbering.note(fresh)
        if run.misfits:
            log.warning(
                "%r: entries of %s have sequences over %d bits; they are delivered with offsets "
                "of later milliseconds (%d so far)",
                self,
                self.key.decode("utf-8", "replace"),
                self.numbering.bits,
                self.misfits,
            )

    # --- the end ---

    def gone(self) -> None:
        self.is_gone = True
        self.is_loaded = False
        self.wake()
