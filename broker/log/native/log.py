"""The log of a native partition: a stream that Redis applications write and read as well.

A batch is appended in one step by a function in the store, together with what makes a retry of it
recognisable; ids, and so offsets, are assigned there. What this worker knows of the stream is in
view.py, reading is in stream_reader.py, reading for a member of a group in member_reader.py.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from moldau.broker.errors import ErrorCode, KafkaError, StoreFault, StoreFull, StoreRefused
from moldau.broker.log.callbacks import Completion
from moldau.broker.log.counting import CountBudget
from moldau.broker.log.log import FetchClient, FetchReader, Log, OffsetAndTimestamp, topic_gone
from moldau.broker.log.native import counting, maintenance, timestamps
from moldau.broker.log.native.fields import TooManyWords, to_words
from moldau.broker.log.native.group_assignments import GroupAssignments
from moldau.broker.log.native.member_reader import ReaderSelection
from moldau.broker.log.native.stream_reader import StreamReader
from moldau.broker.log.native.view import NativeView, ViewHost
from moldau.broker.log.writing.append import Append
from moldau.broker.log.writing.append_queue import acknowledge, too_few
from moldau.broker.log.writing.failed_batches import FailedBatches
from moldau.broker.private.table import Counts
from moldau.broker.settings.kafka import TopicConfig
from moldau.broker.store.native import MAX_WORDS
from moldau.broker.store.replication import Replication
from moldau.broker.store.stream_ids import Id, parse
from moldau.broker.store.watch import Watcher
from moldau.broker.wire.batch import CorruptBatch
from moldau.broker.wire.records import record_spans

logger = logging.getLogger("moldau.log")


class NativeHost(ViewHost, Protocol):
    """What a native log needs of the worker it lives in."""

    watcher: Watcher | None
    group_assignments: GroupAssignments
    replication: Replication

    def producers_kept_ms(self) -> int: ...


class NativeLog(Log):
    def __init__(
        self,
        host: NativeHost,
        topic: str,
        partition: int,
        stream: bytes,
        base: bytes,
        config: Callable[[], TopicConfig],
    ) -> None:
        super().__init__(topic, partition, stream)
        self._host = host
        bits = config().native_bits
        self.view = NativeView(host, repr(self), stream, base, bits, self.waiters)
        self.reader = StreamReader(host.native, self.view, config)
        self._readers = ReaderSelection(
            self.reader, host.native, host.group_assignments, (topic, partition)
        )
        self._in_flight = 0
        self._retries = FailedBatches(time.monotonic)
        self._held: list[tuple[Append, list[bytes | int]]] = []  # until the library is loaded

    # --- bounds ---

    @property
    def start(self) -> int:
        return self.view.start

    @property
    def earliest(self) -> int:
        return self.view.first

    @property
    def end(self) -> int:
        return self.view.end

    @property
    def bytes_known(self) -> int:
        return self.view.bytes_known

    @property
    def records_known(self) -> int:
        return self.view.added

    # --- keeping up with other writers ---

    @property
    def is_loaded(self) -> bool:
        return self.view.is_loaded

    def received(self, entries: list[Any]) -> None:
        self.view.received(entries)

    def look(self) -> None:
        self.view.look()

    def when_loaded(self, done: Completion) -> None:
        self.view.when_loaded(done)

    def when_current(self, done: Completion) -> None:
        self.view.when_current(done)

    @property
    def is_watched(self) -> bool:
        # Where topics share a stream, it may be tailed for another one from a later entry on.
        watcher = self._host.watcher
        return watcher is not None and watcher.tails(self.key) and self.view.is_followed

    def tail_with(self, watcher: Watcher) -> bool:
        self.view.is_followed = True
        if watcher.tails(self.key):
            return False
        watcher.tail_native(self.key, bytes(self.view.last_id))
        return True

    def untailed(self) -> None:
        self.view.is_followed = False

    async def load_start(self) -> None:
        await self.current()

    def gone(self) -> None:
        self.is_gone = True
        self.view.gone()

    # --- reading ---

    def can_read(self, offset: int, client: FetchClient) -> bool:
        return (
            self.is_watched
            and self.view.is_loaded
            and offset <= self.view.end
            and self._readers.knows(client)
        )

    def when_readable(self, offset: int, client: FetchClient, done: Completion) -> None:
        """A member of a group must be known as such from its first fetch on."""

        async def find_reader() -> None:
            await self._readers.find(client)
            wait_for_bounds()

        def wait_for_bounds() -> None:
            if Log.can_read(self, offset, client):
                done(None)
            else:
                Log.when_readable(self, offset, client, done)

        if self._readers.knows(client):
            wait_for_bounds()
        else:
            self._host.spawn(find_reader())

    def reader_for(self, client: FetchClient) -> FetchReader:
        return self._readers.reader_for(client)

    async def offset_for_timestamp(self, timestamp: int) -> OffsetAndTimestamp | None:
        return await timestamps.offset_for_timestamp(self._host.native, self.reader, timestamp)

    async def offset_of_largest_timestamp(self) -> OffsetAndTimestamp | None:
        return await timestamps.offset_of_largest_timestamp(self._host.native, self.reader)

    async def size_in_store(self) -> int:
        return await self._host.native.memory(self.key)

    # --- counting ---

    has_consecutive_offsets = False

    async def counts(self) -> tuple[int, int]:
        await self._host.native.ensure_library()
        bounds = await self.view.read_bounds()
        self.view.added = bounds.added
        return bounds.length, bounds.added

    async def count_from(self, wanted: Sequence[tuple[str, int]], budget: CountBudget) -> Counts:
        return await counting.count_from(self._host.native, self.view, wanted, budget)

    # --- removing ---

    async def delete_before(self, offset: int) -> int:
        return await maintenance.delete_before(self._host.native, self.view, offset)

    async def enforce_retention(self, config: TopicConfig, now_ms: int) -> None:
        kept_ms = self._host.producers_kept_ms()
        try:
            await maintenance.enforce(self._host.native, self.view, config, kept_ms, now_ms)
        except StoreRefused as fault:
            if "WRONGTYPE" not in str(fault):
                raise
            logger.warning("%r: %s", self, fault)  # a Redis client replaced the stream

    # --- groups, as Redis sees them ---

    async def pending(self) -> dict[str, int]:
        groups = await self._host.native.groups_of(self.key)
        return {group.name: group.pending for group in groups}

    def offset_committed(self, group_id: str, offset: int) -> None:
        """XACK: what a group has read and commits is not pending any more."""
        last = self.view.numbering.start_at(offset).first.before
        is_read = bool(self._host.group_assignments.members.readers(group_id))
        self._host.native.acknowledge(self.key, group_id, bytes(last), is_read=is_read)

    async def group_position(self, group_id: str) -> int | None:
        """Its oldest pending entry, else the next to deliver."""
        facts = await self._host.native.group_facts(self.key, group_id)
        if facts is None:
            return None
        await self.current()
        numbering = self.view.numbering
        if facts.oldest_pending is not None:
            return numbering.offset_from(parse(facts.oldest_pending))
        last = parse(facts.last_delivered)
        return numbering.offset_behind(last) if last != (0, 0) else 0

    def group_changed(self, group_id: str) -> None:
        self._readers.group_changed(group_id)

    # --- appending ---

    def append(self, append: Append) -> None:
        if self.is_gone:
            append.done(topic_gone(), -1, -1)
            return
        header = append.header
        if refusal := self._refusal(append):
            append.done(refusal, -1, -1)
            return
        try:
            payload, spans = record_spans(append.batch, len(append.batch))  # it is not compressed
            if not spans:
                append.done(KafkaError(ErrorCode.INVALID_RECORD, "a batch without records"), -1, -1)
                return
            layout, words = to_words(payload, spans, MAX_WORDS)
        except CorruptBatch as fault:
            append.done(KafkaError(ErrorCode.CORRUPT_MESSAGE, str(fault)), -1, -1)
            return
        except TooManyWords:
            text = "too many headers for a native topic"
            append.done(KafkaError(ErrorCode.INVALID_RECORD, text), -1, -1)
            return
        view = self.view
        least = view.numbering.id_at(view.end)
        most = (1 << view.numbering.bits) - 1
        who = (header.producer_id, header.producer_epoch, max(header.base_sequence, 0))
        self._in_flight += 1
        self._send(append, [most, *least, *who, len(spans), layout, *words])

    def _refusal(self, append: Append) -> BaseException | None:
        """Why a batch is not sent at all: it comes again."""
        if refusal := too_few(append, self._host.replication.replicas):
            self._retries.failed(append.header)
            return refusal
        if self._retries:
            try:
                self._retries.check(append.header, None)
            except KafkaError as refusal:
                return self._retries.answer(append.header, refusal)
        return None

    def _send(self, append: Append, words: list[bytes | int]) -> None:
        native = self._host.native
        if self._held or not native.has_library:
            self._held.append((append, words))
            if len(self._held) == 1:
                self._host.spawn(self._send_held())
            return
        native.append(
            self.key, self.view.base, words, lambda outcome: self._appended(append, outcome)
        )

    async def _send_held(self) -> None:
        """Load the store's functions, then send the batches that were held, in order."""
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
        header = append.header
        if isinstance(outcome, StoreFault):
            if isinstance(outcome, StoreFull):
                self._host.store_full(outcome)
            self._retries.failed(header)
            append.done(_answer_to(outcome), -1, -1)
            return
        if outcome[0] == b"OK":
            view = self.view
            first = Id(int(outcome[1]), int(outcome[2]))
            base = view.numbering.natural(first)
            last = view.numbering.id_at(base + header.last_offset_delta)
            if last > view.last_id:
                view.last_id = last
                view.end = max(view.end, base + header.last_offset_delta + 1)
                view.bytes_known += len(append.batch)
                self.waiters.wake()
            append.base_offset = base
            acknowledge(self._host.replication, (append,), self._retries.failed)
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
            refusal = KafkaError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, text)
            append.done(self._retries.answer(header, refusal), -1, -1)

    @property
    def is_busy(self) -> bool:
        return self._in_flight > 0


def _answer_to(fault: StoreFault) -> BaseException:
    """The error for a batch. Unless the store refused it, it may be in the stream, and clients must
    not take it for lost."""
    if isinstance(fault, StoreRefused):
        return fault
    return KafkaError(ErrorCode.REQUEST_TIMED_OUT, str(fault))
