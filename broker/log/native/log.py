"""A partition of a native topic: a stream that Redis applications write and read as well.

Nothing is cached: anybody may append at any time, so what is known of the stream is where it
begins and ends, and that is read anew unless the worker is told of every entry (`Watcher`). A
batch is appended in one step by a function in the store, together with what makes a retry of it
recognisable; ids, and so offsets, are given there. Reading for a group is in group_reading.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from broker.configs import TopicConfig
from broker.errors import (
    ErrorCode,
    KafkaError,
    StoreFault,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
)
from broker.log.flight import Append
from broker.log.following import topic_gone
from broker.log.native.batching import Delivery, RawEntry, to_batches
from broker.log.native.fields import TooManyWords, to_words
from broker.log.native.ids import Id, Numbering, Run, parse, parse_mark, too_large
from broker.log.reading import ReadDone
from broker.log.settling import Settled, settled
from broker.store.native import MOST_WORDS, Bounds, NativeStreams, RawEntries
from broker.store.streams import Streams
from broker.wire.batch import CorruptBatch
from broker.wire.records import record_spans
from broker.wire.template import Template

log = logging.getLogger("moldau.log")

DECODED_LIMIT = 1 << 28
MOST_COUNT = 1_000  # so long a worker does nothing else: some 4 ms
FIRST_COUNT = 32  # of entries, before any was seen: they may be large
FIRST_GUESS = 512  # bytes of one, until then


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


class NativeLog:
    """See the module. Offers what handlers use of a PartitionLog."""

    def __init__(
        self,
        host: NativeHost,
        topic: str,
        partition: int,
        stream: bytes,
        base: bytes,
        config: Callable[[], TopicConfig],
    ) -> None:
        self._host = host
        self.topic = topic
        self.partition = partition
        self.key = stream
        self.base = base
        self._config = config
        self.numbering = Numbering(config().native_bits)
        self.state = Seen()
        self.start = 0
        self.first = 0  # offset of the first entry
        self.end = 0
        self.last_id = Id(0, 0)
        self.waiters: dict[object, Callable[[], None]] = {}
        self.replies: dict[int, Template] = {}
        self.is_loaded = False
        self.is_gone = False
        self.is_followed = False  # told of what others add to the stream
        self.readings: dict[str, Any] = {}  # by group: GroupReading, of members this worker serves
        # Readers that are no group's member, as the store said: client id and address.
        self.strangers: set[tuple[str, str]] = set()
        self._average = 0  # bytes of an entry, of late; 0: none was seen
        self._asking: list[Settled] = []  # told when the answer is here
        self._ask_next: list[Settled] = []  # came later: what is out may miss what they know of
        self.misfits = 0
        self._in_flight = 0
        self._held: list[tuple[Append, list[bytes | int]]] = []  # until the library is there

    def __repr__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def value_field(self) -> bytes | None:
        return self._config().native_value.encode() or None

    @property
    def is_plain(self) -> bool:
        """Does the last id say where the log ends? Not when offsets have moved up (see ids.py)."""
        return not self.numbering.noted and self.numbering.fits(self.last_id)

    # --- where it begins and ends ---

    def when_loaded(self, done: Settled) -> None:
        if self.is_gone:
            done(topic_gone())
        elif self.is_loaded:
            done(None)
        else:
            self.when_current(done)

    def when_current(self, done: Settled) -> None:
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
            entries = await native.entries(self.key, bytes(at), MOST_COUNT)
            for raw, _ in entries:
                if (entry_id := parse(raw)) <= last:
                    run.offset_of(entry_id)
            if len(entries) < MOST_COUNT:
                break
            at = parse(entries[-1][0]).after
        await self.note(run)

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

    # --- reading, for nobody in particular ---

    def read_tail(self, offset: int, limit: int, *, at_least_one: bool) -> None:
        """Nothing is cached."""
        return

    def read_store(self, offset: int, limit: int, *, at_least_one: bool, done: ReadDone) -> None:
        run = self.numbering.start_at(offset)

        def again(fault: StoreFault | None) -> None:
            if fault is not None:
                done(fault)
            else:
                self.read_store(offset, limit, at_least_one=at_least_one, done=done)

        def got(marks: int | StoreFault, entries: RawEntries | StoreFault) -> None:
            if isinstance(entries, StoreFault):
                done(entries)
            elif isinstance(marks, StoreFault):
                done(marks)
            elif marks > len(self.numbering.noted):
                self.learn_marks(again)
            else:
                try:
                    found = to_batches(
                        entries, run, self.value_field, limit, at_least_one=at_least_one
                    )
                except Exception as fault:
                    # A fault of ours, or entries nobody thought of: said, not waited for.
                    log.exception("%r: what is at %d cannot be delivered", self, offset)
                    done(StoreRefused(str(fault)))
                    return
                self.deliver(run, found, done)

        count = self.count_for(limit)
        self._host.native.read(self.key, self.base, bytes(run.first), count, got)

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

    def count_for(self, limit: int) -> int:
        """How many entries to ask for: about as many as fit."""
        if not self._average:
            return FIRST_COUNT
        return max(1, min(limit // self._average, MOST_COUNT))

    def deliver(self, run: Run, found: Delivery, done: ReadDone) -> None:
        """Give records to a reader; what is odd about their offsets is noted first."""
        if found.taken:
            # Rounded up, and larger ones count at once: as little as can be is read in vain.
            now = -(-found.size // found.taken)
            self._average = max(now, (self._average + now) // 2)
            self.end = max(self.end, found.last_offset + 1)
        if run.misfits or run.marks:
            self._host.spawn(self._note_and_deliver(run, found, done))
        else:
            done(list(found.batches))

    async def _note_and_deliver(self, run: Run, found: Delivery, done: ReadDone) -> None:
        try:
            await self.note(run)
        except StoreFault as fault:
            done(fault)
        else:
            done(list(found.batches))

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

    # --- appending ---

    def append(self, append: Append) -> None:
        if self.is_gone:
            append.done(topic_gone(), -1, -1)
            return
        header = append.header
        try:
            payload, spans = record_spans(append.batch, DECODED_LIMIT)
            if not spans:
                append.done(KafkaError(ErrorCode.INVALID_RECORD, "a batch without records"), -1, -1)
                return
            layout, words = to_words(payload, spans, MOST_WORDS)
        except CorruptBatch as fault:
            append.done(KafkaError(ErrorCode.CORRUPT_MESSAGE, str(fault)), -1, -1)
            return
        except TooManyWords:
            text = "too many headers for a native topic"
            append.done(KafkaError(ErrorCode.INVALID_RECORD, text), -1, -1)
            return
        least = self.numbering.id_at(self.end)
        most = (1 << self.numbering.bits) - 1
        who = (header.producer_id, header.producer_epoch, max(header.base_sequence, 0))
        self._in_flight += 1
        self._send(append, [most, *least, *who, len(spans), layout, *words])

    def _send(self, append: Append, words: list[bytes | int]) -> None:
        native = self._host.native
        if self._held or not native.has_library:
            self._held.append((append, words))
            if len(self._held) == 1:
                self._host.spawn(self._send_held())
            return
        native.append(self.key, self.base, words, lambda outcome: self._appended(append, outcome))

    async def _send_held(self) -> None:
        """The store's functions first; then what came meanwhile, in its order."""
        fault: StoreFault | None = None
        try:
            await self._host.native.ensure_library()
        except StoreFault as failure:
            fault = failure
        held, self._held = self._held, []
        for append, words in held:
            if fault is None:
                self._send(append, words)
            else:
                self._appended(append, fault)

    def _appended(self, append: Append, outcome: tuple[bytes, ...] | StoreFault) -> None:
        self._in_flight -= 1
        if isinstance(outcome, StoreFault):
            if isinstance(outcome, StoreFull):
                self._host.store_full(outcome)
            append.done(outcome, -1, -1)
            return
        header = append.header
        if outcome[0] == b"OK":
            first = Id(int(outcome[1]), int(outcome[2]))
            base = self.numbering.natural(first)
            last = self.numbering.id_at(base + header.last_offset_delta)
            if last > self.last_id:
                self.last_id = last
                self.end = max(self.end, base + header.last_offset_delta + 1)
                self.state.size += len(append.batch)
                self.wake()
            self._acknowledge(append, base)
        elif outcome[0] == b"GONE":
            self.gone()
            append.done(topic_gone(), -1, -1)
        elif outcome[0] == b"RANGE":
            text = "the stream's last id is too large for an offset"
            append.done(KafkaError(ErrorCode.POLICY_VIOLATION, text), -1, -1)
        elif outcome[0] == b"EPOCH":
            text = f"producer {header.producer_id} has epoch {outcome[1].decode()}"
            append.done(KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, text), -1, -1)
        else:
            text = f"producer {header.producer_id}: sequence {outcome[1].decode()} is expected"
            append.done(KafkaError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, text), -1, -1)

    def _acknowledge(self, append: Append, base: int) -> None:
        timestamp = append.header.max_timestamp
        if not append.replicas:
            append.done(None, base, timestamp)
            return

        def reached(got: int) -> None:
            error: BaseException | None = None
            if got < 0:
                error = StoreUnavailable("the store did not say how many replicas have it")
            elif got < append.replicas:
                text = f"{got} of {append.replicas} replicas of the store have it"
                error = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, text)
            append.done(error, base, timestamp)

        self._host.streams.wait_replicas(append.replicas, append.timeout_ms, reached)

    @property
    def is_busy(self) -> bool:
        return self._in_flight > 0

    # --- the end ---

    def gone(self) -> None:
        self.is_gone = True
        self.is_loaded = False
        self.wake()


def parsed_entries(entries: RawEntries) -> list[RawEntry]:
    return [(parse(raw), fields) for raw, fields in entries]
