"""A partition of a native topic: a stream that Redis applications write and read as well.

Nothing is cached: what this worker knows of the stream is in replica.py. A batch is appended in
one step by a function in the store, together with what makes a retry of it recognisable; ids, and
so offsets, are given there. Reading for a group is in group_reader.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from broker.errors import (
    ErrorCode,
    KafkaError,
    StoreFault,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
)
from broker.log.flight import Append
from broker.log.native.batching import Delivery, to_batches
from broker.log.native.fields import TooManyWords, to_words
from broker.log.native.ids import Id, Run
from broker.log.native.replica import MAX_ENTRIES_PER_READ, NativeHost, NativeReplica
from broker.log.reader import ReadDone
from broker.log.replica import topic_gone
from broker.settings.kafka import TopicConfig
from broker.store.native import MAX_WORDS, RawEntries
from broker.wire.batch import CorruptBatch
from broker.wire.records import record_spans

log = logging.getLogger("moldau.log")

DECODED_LIMIT = 1 << 28
FIRST_COUNT = 32  # of entries, before any was seen: they may be large


class NativeLog(NativeReplica):
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
        super().__init__(host, topic, partition, stream, base, config().native_bits)
        self._config = config
        self.readings: dict[str, Any] = {}  # by group: GroupReader, of members this worker serves
        # Readers that are no group's member, as the store said: client id and address.
        self.strangers: set[tuple[str, str]] = set()
        self._in_flight = 0
        self._held: list[tuple[Append, list[bytes | int]]] = []  # until the library is there

    @property
    def value_field(self) -> bytes | None:
        return self._config().native_value.encode() or None

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
        self._host.native.read(self.key, self.base, bytes(run.first), count, limit, got)

    def count_for(self, limit: int) -> int:
        """How many entries to ask for: about as many as fit."""
        if not self._average:
            return FIRST_COUNT
        return max(1, min(limit // self._average, MAX_ENTRIES_PER_READ))

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
            layout, words = to_words(payload, spans, MAX_WORDS)
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
