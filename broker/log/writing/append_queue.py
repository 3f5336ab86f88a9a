"""From the queue of batches to an entry, and to their acknowledgement. Pure.

A batch is checked when its turn comes, against the state of the log and the batches gathered before
it: duplicates are acknowledged, invalid batches refused. A transactional batch whose producer has
no transaction open here leaves the queue, with every later batch of the same producer, until their
coordinator has named the transaction (verification.py).

What is in the log is acknowledged at once, or when the store's replicas have it.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Protocol

import msgspec

from moldau.broker.errors import ErrorCode, KafkaError, code_for
from moldau.broker.log.state.log_state import Duplicate, LogState, Producer, TransactionStep
from moldau.broker.log.writing.append import NO_REPLICAS, Append, MarkerAppend
from moldau.broker.log.writing.failed_batches import SENT_AGAIN, FailedBatches
from moldau.broker.log.writing.mirrored import MirroredChunk
from moldau.broker.store.replication import NEVER
from moldau.broker.store.streams import Entry
from moldau.broker.wire.batch import (
    CONTROL,
    NO_PRODUCER_ID,
    TRANSACTIONAL,
    BatchHeader,
    Buffer,
    set_base_offset,
)
from moldau.broker.wire.control import EndMarker

ENTRY_LIMIT = 1 << 20  # bytes gathered into one entry
JOIN_LIMIT = 1 << 14  # smaller entries are kept in one piece

# Entries with a batch that is not idempotent carry a nonce: without one, two workers' identical
# batches could not be distinguished after a lost connection.
_writer = os.urandom(6)
_appends = count()


class Replicas(Protocol):
    """The replicas of the store."""

    @property
    def replicas(self) -> int:
        """How many are online."""

    def when_replicated(self, done: Callable[[int], None]) -> None:
        """Call `done` with how many have everything that is written now, or with NEVER."""


class InFlightEntry(msgspec.Struct, eq=False):
    """The entry that is being appended."""

    base: int
    end: int
    epoch: int = 0
    size: int = 0
    max_timestamp: int = -1
    max_timestamp_base: int = -1
    nonce: bytes = b""
    sent_ns: int = 0
    sent_again: bool = False  # the same bytes twice: the store takes one of them
    even_if_full: bool = False  # only markers, which a full store has to take
    parts: list[Buffer] = []
    appends: list[Append] = []
    producers: dict[int, Producer] = {}
    steps: tuple[TransactionStep, ...] = ()

    def begins_transaction(self, producer_id: int) -> None:
        """The batch that is added next opens a transaction."""
        self.steps += (TransactionStep(producer_id, self.end, self.size),)

    def ends_transaction(self, producer_id: int, marker: EndMarker) -> None:
        """The marker that is added next ends a transaction."""
        self.steps += (TransactionStep(producer_id, self.end, self.size, marker),)

    def add(self, append: Append, producer: Producer | None) -> None:
        header = append.header
        set_base_offset(append.batch, self.end, self.epoch)
        append.base_offset = self.end
        if producer is not None:
            self.producers[header.producer_id] = producer
        elif not self.nonce:
            self.nonce = b"%b%x" % (_writer, next(_appends))
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp
            self.max_timestamp_base = self.end
        self.end += header.last_offset_delta + 1
        self.size += len(append.batch)
        self.parts.append(append.batch)
        self.appends.append(append)

    def seal(self) -> None:
        """Nothing more is added: join the parts if they are small."""
        if len(self.parts) > 1 and self.size <= JOIN_LIMIT:
            self.parts = [b"".join(self.parts)]

    def matches(self, entry: Entry) -> bool:
        """Is this what we sent?"""
        if entry.base != self.base or entry.nonce != self.nonce:
            return False
        return entry.blob == b"".join(self.parts)


class AppendQueue:
    """`acknowledge` is called with a duplicate, its offset and its timestamp; `hand_back` with
    batches of one producer, in order, whose coordinator has to be asked."""

    def __init__(
        self,
        acknowledge: Callable[[Append, int, int], None],
        hand_back: Callable[[list[Append]], None],
        clock: Callable[[], float],
        refused: dict[str, int] | None = None,
    ) -> None:
        self._acknowledge = acknowledge
        self._hand_back = hand_back
        self._refused = {} if refused is None else refused  # counts, by the name of the error
        self.waiting: deque[Append] = deque()  # always the same object
        self.rechecked: Append | None = None  # seemed out of order before we caught up
        self.retries = FailedBatches(clock)
        self.wants_to_catch_up = False  # a refusal might be overturned by others' entries

    def put_back(self, entry: InFlightEntry) -> None:
        self.waiting.extendleft(reversed(entry.appends))

    def keep_markers(self, entry: InFlightEntry) -> bool:
        """Queue the markers of an entry again that a full store has refused. False: it has none.

        Markers are needed most then: consumers stop at open transactions, and records that are not
        consumed are not removed. They are sent again in a way that a full store accepts.
        """
        markers = [append for append in entry.appends if isinstance(append, MarkerAppend)]
        if markers:
            entry.appends = [each for each in entry.appends if each not in markers]
            self.waiting.extendleft(reversed(markers))
        return bool(markers)

    def drop_given_up(self) -> None:
        """Drop the batches that clients stopped waiting for, and send again; not the newest."""
        queue = self.waiting
        while queue[0].given_up and len(queue) > 1:
            self.retries.failed(queue.popleft().header)

    def fail(self, append: Append, fault: BaseException) -> None:
        """Its client will send it again, unless the fault is one of its own."""
        if not isinstance(fault, KafkaError) or fault.code in SENT_AGAIN:
            self.retries.failed(append.header)
        error = code_for(fault).name
        self._refused[error] = self._refused.get(error, 0) + 1
        append.done(fault, -1, -1)

    def fail_all(self, fault: BaseException) -> None:
        queued = list(self.waiting)
        self.waiting.clear()
        for append in queued:
            self.fail(append, fault)

    def gather(self, state: LogState, epoch: int, *, only_markers: bool = False) -> InFlightEntry:
        """The next entry, perhaps empty."""
        queue = self.waiting
        entry = InFlightEntry(state.end, state.end, epoch=epoch)
        while queue and (not entry.parts or entry.size + len(queue[0].batch) <= ENTRY_LIMIT):
            append = queue.popleft()
            header = append.header
            if append.given_up:
                self.retries.failed(header)
            elif header.attributes & CONTROL:
                if isinstance(append, MirroredChunk):
                    if not self._gather_chunk(append, state, entry, is_full=only_markers):
                        break
                elif not self._gather_marker(append, state, entry):
                    break
            elif only_markers:
                queue.appendleft(append)
                break
            elif header.producer_id == NO_PRODUCER_ID:
                entry.add(append, None)
            elif not self._gather_batch(append, state, entry):
                break
        return entry

    def _gather_batch(self, append: Append, state: LogState, entry: InFlightEntry) -> bool:
        """A batch with a producer id. False: it has to wait for the entry before it."""
        header, ahead = append.header, entry.producers
        try:
            duplicate = state.check(header, ahead)
            if self.retries and duplicate is None:
                self.retries.check(header, state.next_sequence(header, ahead))
            if duplicate is None and header.attributes & TRANSACTIONAL:
                _check_first(append, state, ahead)
                if not self._may_join(append, state, ahead):
                    self._hand_back([append, *self._take_all_of(header)])
                    return True
        except KafkaError as refusal:
            if self._may_be_mistaken(append, refusal):
                self.waiting.appendleft(append)
                self.wants_to_catch_up = True
                return False
            append.done(self.retries.answer(header, refusal), -1, -1)
            return True
        if duplicate is not None:
            return self._is_acknowledged(append, duplicate, entry)
        producer = state.advance(header, entry.end, ahead)
        if header.attributes & TRANSACTIONAL and producer.open_from == entry.end:
            entry.begins_transaction(header.producer_id)
        entry.add(append, producer)
        return True

    def _is_acknowledged(self, append: Append, duplicate: Duplicate, entry: InFlightEntry) -> bool:
        if duplicate.base_offset >= entry.base:
            # It repeats a batch of this very entry: both succeed or fail together.
            self.waiting.appendleft(append)
            return False
        # Wait for replicas again: the first reply may have been "too few".
        self._acknowledge(append, duplicate.base_offset, duplicate.timestamp)
        return True

    def _may_join(self, append: Append, state: LogState, ahead: dict[int, Producer]) -> bool:
        participation = append.participation
        assert participation is not None
        is_asked = participation.asked_in == state.epoch_start
        joins = state.joins(append.header, ahead, participation.number if is_asked else 0)
        if joins is False:
            raise KafkaError(
                ErrorCode.TRANSACTION_ABORTABLE,
                f"transaction {participation.number} of {participation.transactional_id!r} has "
                "ended in this partition",
            )
        if joins is None:
            participation.number, participation.asked_in = 0, state.epoch_start
        return bool(joins)

    def _take_all_of(self, header: BatchHeader) -> list[Append]:
        """Everything else of a producer that is queued. Its order must stay as it is."""
        taken: list[Append] = []
        kept: list[Append] = []
        for append in self.waiting:
            mine = append.header.producer_id == header.producer_id
            (taken if mine and append.participation is not None else kept).append(append)
        if taken:
            self.waiting.clear()
            self.waiting.extend(kept)
        return taken

    def _gather_marker(self, append: Append, state: LogState, entry: InFlightEntry) -> bool:
        """False: the one that makes it superfluous is in this very entry."""
        assert isinstance(append, MarkerAppend)
        producer_id, ahead = append.header.producer_id, entry.producers
        if refusal := append.refusal(state, ahead):
            append.done(refusal, -1, -1)
            return True
        if not append.is_needed(state, ahead):
            if producer_id in ahead:
                self.waiting.appendleft(append)
                return False
            self._acknowledge(append, -1, -1)
            return True
        append.number_it(state, ahead)
        end = append.end
        entry.ends_transaction(producer_id, end)
        entry.add(append, state.advance_by_marker(append.header, end, entry.end, ahead))
        return True

    def _gather_chunk(
        self, chunk: MirroredChunk, state: LogState, entry: InFlightEntry, *, is_full: bool
    ) -> bool:
        """A mirrored chunk is an entry of its own. False: nothing more is gathered."""
        if is_full or entry.parts:
            self.waiting.appendleft(chunk)
            return False
        refusal = chunk.refusal(state)
        if refusal is None:
            chunk.add_to(entry, state)
            return False
        if chunk.at > state.end and chunk is not self.rechecked:
            # What it follows may have gone through another worker: catch up once, then check.
            self.rechecked = chunk
            self.waiting.appendleft(chunk)
            self.wants_to_catch_up = True
            return False
        self.fail(chunk, refusal)
        return True

    def _may_be_mistaken(self, append: Append, refusal: KafkaError) -> bool:
        """The batch it follows may have gone through another worker: catch up once, then check."""
        if refusal.code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER or append is self.rechecked:
            return False
        self.rechecked = append
        return True


def _check_first(append: Append, state: LogState, ahead: dict[int, Producer]) -> None:
    """A client that adds partitions by producing to them begins every transaction with a new epoch
    (KIP-890): the first batch of an unknown producer has sequence 0, or some were lost."""
    header, participation = append.header, append.participation
    if participation is None:
        # The request had no transactional id: refused before it gets here.
        raise KafkaError(ErrorCode.INVALID_TXN_STATE)
    known = ahead.get(header.producer_id) or state.producers.get(header.producer_id)
    if known is None and participation.adds and header.base_sequence:
        raise KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {header.producer_id} is not known here and begins with sequence "
            f"{header.base_sequence}",
        )


def too_few(append: Append, online: int) -> KafkaError | None:
    """The refusal of a batch that needs more replicas than are online."""
    if append.replicas <= online:
        return None
    wanted = append.replicas
    text = f"min.insync.replicas wants {wanted} replicas of the store, there are {online}"
    return KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, text)


def acknowledge(
    replication: Replicas,
    appends: Sequence[Append],
    failed: Callable[[BatchHeader], None],
    *,
    at: tuple[int, int] | None = None,
    shown: Callable[[int], None] | None = None,
) -> None:
    """Complete batches that are in the log.

    acks=1 is answered at once, and acks=all if the store has no replicas; otherwise once every
    replica that is online has the batch. `at`: its offset and timestamp, if it was in the log
    before. `failed` is called for each batch that its client will send again, `shown` with how many
    replicas have them.
    """
    online = replication.replicas
    waiting: list[Append] = []
    for append in appends:
        if append.replicas != NO_REPLICAS and (online or append.replicas):
            waiting.append(append)
        elif at is None:
            append.done(None, append.base_offset, append.header.max_timestamp)
        else:
            append.done(None, *at)
    if waiting or shown is not None:
        replication.when_replicated(partial(_replicated, waiting, failed, at, shown))


def _replicated(
    waiting: list[Append],
    failed: Callable[[BatchHeader], None],
    at: tuple[int, int] | None,
    shown: Callable[[int], None] | None,
    reached: int,
) -> None:
    for append in waiting:
        fault = shortage(append, reached)
        if fault is not None:
            failed(append.header)
        append.done(fault, *(at or (append.base_offset, append.header.max_timestamp)))
    if shown is not None:
        shown(reached)


def shortage(append: Append, reached: int) -> KafkaError | None:
    """The error for a batch that `reached` replicas have; None if these are enough."""
    if reached == NEVER:
        # The batch may be in the log that is left. Clients read only this code as "perhaps".
        text = "the store was exchanged before its replicas had it"
    elif reached < append.replicas:
        text = f"{reached} of {append.replicas} replicas of the store have it"
    else:
        return None
    return KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, text)
