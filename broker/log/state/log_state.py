"""The state of a partition: a fold over its log. Pure: no I/O, no clock.

Everything here follows from the batch headers in the log, so any worker that has read the same
entries has the same state, a restart rebuilds it, and a snapshot of it bounds how much has to be
read. The state of idempotent producers is what makes a retried batch recognisable (KIP-98):

    same epoch, exactly the sequences of one of the last five batches   duplicate: old offset
    same epoch, next sequence (wrapping at 2^31 - 1)                    append
    same epoch, a later sequence, and the log may have lost what
    is between (its last batch is before the leader epoch's start)      append
    same epoch, anything else                                           OUT_OF_ORDER_SEQUENCE_NUMBER
    newer epoch, sequence 0                                             append
    newer epoch, anything else                                          OUT_OF_ORDER_SEQUENCE_NUMBER
    older epoch                                                         INVALID_PRODUCER_EPOCH
    unknown producer                                                    append, any sequence

A transactional batch is part of a transaction that its producer has open here, at this epoch; or it
opens the transaction its coordinator has named, unless the marker of that one, or of a later one,
is in the log already. So no batch can come in behind the marker that was meant to end it, whichever
worker appends it, and no transaction stays open forever.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from moldau.broker.errors import ErrorCode, KafkaError
from moldau.broker.log.state.transactions import LogTransactions, OpenTransaction
from moldau.broker.txn.record import is_after
from moldau.broker.wire.batch import (
    CONTROL,
    NO_PRODUCER_ID,
    TRANSACTIONAL,
    BatchHeader,
    Buffer,
    read_header,
)
from moldau.broker.wire.control import EndMarker, read_end_marker

REMEMBERED_BATCHES = 5
SEQUENCE_MODULUS = 1 << 31
NOT_OPEN = -1


class KnownBatch(msgspec.Struct, array_like=True, frozen=True, gc=False):
    first_sequence: int
    last_sequence: int
    base_offset: int
    timestamp: int


class Transactional(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What is known of a producer's transactions on one partition. Others do without."""

    ended: int = 0
    marker_at: int = -1  # the offset of its last marker
    open_from: int = NOT_OPEN


NO_TRANSACTION_YET = Transactional()


class Producer(msgspec.Struct, array_like=True, frozen=True):
    """An idempotent producer on one partition. Replaced, never changed: checks can be dropped."""

    epoch: int
    batches: tuple[KnownBatch, ...]  # none: a marker has raised its epoch since
    transactional: Transactional | None = None  # None: it never was

    @property
    def ended(self) -> int:
        """The number of its last transaction that has ended; 0: none has."""
        return self.transactional.ended if self.transactional is not None else 0

    @property
    def open_from(self) -> int:
        """The first offset of its open transaction; NOT_OPEN: it has none."""
        return self.transactional.open_from if self.transactional is not None else NOT_OPEN

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else -1

    @property
    def last_offset(self) -> int:
        """The base offset of its last batch, or of its marker."""
        marker_at = self.transactional.marker_at if self.transactional is not None else -1
        return max(self.batches[-1].base_offset, marker_at) if self.batches else marker_at

    @property
    def last_timestamp(self) -> int:
        return self.batches[-1].timestamp if self.batches else -1

    def may_begin(self, number: int) -> bool:
        """May a batch open the transaction with this number? Its marker must be still to come."""
        return not self.ended or is_after(number, self.ended)


class Silence(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Since when, by a worker's clock, a producer's last batch has been this one."""

    base_offset: int
    since_ms: int


class Duplicate(NamedTuple):
    """The batch is in the log already; this is where."""

    base_offset: int
    timestamp: int


class TransactionStep(NamedTuple):
    """A batch or marker that opens or ends a transaction."""

    producer_id: int
    offset: int
    size_before: int  # bytes of its entry before it
    end: EndMarker | None = None


class Snapshot(msgspec.Struct, array_like=True):
    """The fold up to `end`, as it is saved beside the log."""

    end: int
    size: int
    entries: int
    max_timestamp: int
    max_timestamp_base: int
    producers: dict[int, Producer]
    silent: dict[int, Silence] = {}
    open: dict[int, OpenTransaction] = {}
    has_aborted: bool = False


_encode_snapshot = msgspec.msgpack.Encoder().encode
_decode_snapshot = msgspec.msgpack.Decoder(Snapshot).decode


class LogState:
    """End offset, bytes, timestamps and producers of a log, up to its last known entry."""

    __slots__ = (
        "end", "entries", "epoch_start", "max_timestamp", "max_timestamp_base", "producers",
        "silent", "size", "transactions",
    )  # fmt: skip

    def __init__(self) -> None:
        self.end = 0
        self.epoch_start = 0  # of the current leader epoch
        self.size = 0  # bytes ever appended, including those before the log start
        self.entries = 0
        self.max_timestamp = -1
        self.max_timestamp_base = -1  # base offset of the batch that has it
        self.producers: dict[int, Producer] = {}
        self.silent: dict[int, Silence] = {}  # noted when producers are forgotten
        self.transactions = LogTransactions()

    def check(self, header: BatchHeader, ahead: dict[int, Producer]) -> Duplicate | None:
        """May this batch be appended? `ahead`: the producers of the batches before it in the entry.

        Returns None when it may, a Duplicate when it is in the log already; raises KafkaError when
        it must be refused.
        """
        producer_id = header.producer_id
        if producer_id == NO_PRODUCER_ID:
            return None
        known = ahead.get(producer_id) or self.producers.get(producer_id)
        first = header.base_sequence
        last = (first + header.last_offset_delta) % SEQUENCE_MODULUS
        if known is not None:
            if header.producer_epoch < known.epoch:
                raise KafkaError(
                    ErrorCode.INVALID_PRODUCER_EPOCH,
                    f"producer {producer_id} has epoch {known.epoch}, not {header.producer_epoch}",
                )
            if header.producer_epoch == known.epoch:
                for batch in known.batches:
                    if batch.first_sequence == first and batch.last_sequence == last:
                        return Duplicate(batch.base_offset, batch.timestamp)
                expected = (known.last_sequence + 1) % SEQUENCE_MODULUS
            else:
                expected = 0
            if (
                known.transactional is not None
                and known.transactional.open_from >= 0
                and not header.attributes & TRANSACTIONAL
            ):
                raise KafkaError(
                    ErrorCode.INVALID_TXN_STATE,
                    f"producer {producer_id} has a transaction open, and this batch is outside it",
                )
            if first != expected and not self._may_have_lost_between(known, header, expected):
                raise KafkaError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"producer {producer_id}: sequence {first}, expected {expected}",
                )
        return None

    def _may_have_lost_between(self, known: Producer, header: BatchHeader, expected: int) -> bool:
        """Were the producer's batches before this one perhaps lost with the end of the log?

        They were acknowledged, so the producer does not send them again, and refusing the next one
        would stop it for good.
        """
        # Its marker may have been written again since: what counts is its last batch.
        last = known.batches[-1].base_offset if known.batches else known.last_offset
        if last >= self.epoch_start or header.producer_epoch != known.epoch:
            return False
        ahead = (header.base_sequence - expected) % SEQUENCE_MODULUS
        return ahead < SEQUENCE_MODULUS // 2

    def joins(self, header: BatchHeader, ahead: dict[int, Producer], number: int) -> bool | None:
        """Is this transactional batch part of a transaction, open or named by its coordinator?

        `number`: of the transaction the coordinator has named, in this leader epoch; 0: it has not
        been asked. None: it has to be.
        """
        known = ahead.get(header.producer_id) or self.producers.get(header.producer_id)
        if (
            known is not None
            and known.open_from >= 0
            and known.epoch == header.producer_epoch
            # What an earlier leader epoch has left open may be the transaction before this one,
            # whose marker is lost: the coordinator says which it is, once that is there again.
            and (number or known.open_from >= self.epoch_start)
        ):
            return True
        if not number:
            return None
        return known is None or known.may_begin(number)

    def awaits(self, producer_id: int, number: int, ahead: dict[int, Producer]) -> bool:
        """Is the marker of this transaction still to come?"""
        known = ahead.get(producer_id) or self.producers.get(producer_id)
        return known is None or known.may_begin(number)

    def next_sequence(self, header: BatchHeader, ahead: dict[int, Producer]) -> int | None:
        """What the producer's next batch begins with; None if it or its epoch is unknown."""
        known = ahead.get(header.producer_id) or self.producers.get(header.producer_id)
        if known is None or known.epoch != header.producer_epoch:
            return None
        return (known.last_sequence + 1) % SEQUENCE_MODULUS

    def begin_epoch(self, start: int) -> None:
        """The current leader epoch begins at `start`; every entry before it is known."""
        self.epoch_start = start
        self.end = max(self.end, start)

    def advance(
        self, header: BatchHeader, base_offset: int, ahead: dict[int, Producer]
    ) -> Producer:
        """The producer of a batch once it stands at `base_offset`; the state does not change."""
        producer_id = header.producer_id
        known = ahead.get(producer_id) or self.producers.get(producer_id)
        first = header.base_sequence
        last = (first + header.last_offset_delta) % SEQUENCE_MODULUS
        batch = KnownBatch(first, last, base_offset, header.max_timestamp)
        transactional = None if known is None else known.transactional
        if header.attributes & TRANSACTIONAL:
            transactional = transactional or NO_TRANSACTION_YET
            if transactional.open_from < 0:
                ended, marker_at = transactional.ended, transactional.marker_at
                transactional = Transactional(ended, marker_at, base_offset)
        if known is None or known.epoch != header.producer_epoch:
            return Producer(header.producer_epoch, (batch,), transactional)
        batches = (*known.batches, batch)[-REMEMBERED_BATCHES:]
        return Producer(known.epoch, batches, transactional)

    def advance_by_marker(
        self, header: BatchHeader, end: EndMarker, offset: int, ahead: dict[int, Producer]
    ) -> Producer:
        """`advance` for a marker. After one of a newer epoch sequence 0 is next."""
        known = ahead.get(header.producer_id) or self.producers.get(header.producer_id)
        number, epoch = end.coordinator_epoch, header.producer_epoch
        if known is None:
            return Producer(epoch, (), Transactional(number, offset))
        ended = number if known.may_begin(number) else known.ended
        if epoch > known.epoch:
            return Producer(epoch, (), Transactional(ended, offset))
        return Producer(known.epoch, known.batches, Transactional(ended, offset))

    def appended(
        self,
        end: int,
        size: int,
        max_timestamp: int,
        base: int,
        producers: dict[int, Producer],
        steps: Iterable[TransactionStep] = (),
    ) -> None:
        """Apply an entry of ours that was checked with `check` and `advance`."""
        if steps:
            self._follow(steps)
        self.end = end
        self.size += size
        self.entries += 1
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_base = base
        if producers:
            self.producers.update(producers)

    def _follow(self, steps: Iterable[TransactionStep]) -> None:
        transactions = self.transactions
        for producer_id, offset, size_before, end in steps:
            if end is None:
                transactions.begin(producer_id, offset, self.size + size_before)
            else:
                transactions.end(producer_id, offset, commit=end.commit)

    def apply(self, blob: Buffer) -> None:
        """Apply an entry read from the log. It is not checked: it was before it was appended."""
        at, size = 0, len(blob)
        while at < size:
            header = read_header(blob, at)
            if header.producer_id != NO_PRODUCER_ID:
                self._apply_producer(header, blob, at)
            if header.max_timestamp > self.max_timestamp:
                self.max_timestamp = header.max_timestamp
                self.max_timestamp_base = header.base_offset
            self.end = header.next_offset
            at += header.size
        self.size += size
        self.entries += 1

    def _apply_producer(self, header: BatchHeader, blob: Buffer, at: int) -> None:
        offset, producer_id = header.base_offset, header.producer_id
        if header.attributes & CONTROL:
            end = read_end_marker(blob, at)
            self.producers[producer_id] = self.advance_by_marker(header, end, offset, {})
            self._follow((TransactionStep(producer_id, offset, at, end),))
        elif header.base_sequence >= 0:
            producer = self.advance(header, offset, {})
            self.producers[producer_id] = producer
            if producer.open_from == offset:
                self._follow((TransactionStep(producer_id, offset, at),))

    def forget_producers(self, now_ms: int, kept_ms: int) -> None:
        """Forget producers that have written nothing for `kept_ms`.

        By our own clock, from the first time their last batch was seen to be their last. Record
        timestamps do not count, so that a producer of old records is kept as long as any other.
        """
        silent = {}
        for producer_id, producer in list(self.producers.items()):
            if producer.open_from >= 0:
                continue
            since = self.silent.get(producer_id)
            if since is None or since.base_offset != producer.last_offset:
                since = Silence(producer.last_offset, now_ms)
            elif now_ms - since.since_ms >= kept_ms:
                del self.producers[producer_id]
                continue
            silent[producer_id] = since
        self.silent = silent

    def snapshot(self) -> bytes:
        return _encode_snapshot(
            Snapshot(
                self.end,
                self.size,
                self.entries,
                self.max_timestamp,
                self.max_timestamp_base,
                self.producers,
                self.silent,
                self.transactions.open,
                self.transactions.has_aborted,
            )
        )

    @classmethod
    def restore(cls, data: bytes | None) -> LogState:
        state = cls()
        if data is not None:
            saved = _decode_snapshot(data)
            state.end = saved.end
            state.size = saved.size
            state.entries = saved.entries
            state.max_timestamp = saved.max_timestamp
            state.max_timestamp_base = saved.max_timestamp_base
            state.producers = saved.producers
            state.silent = saved.silent
            state.transactions.open = saved.open
            if saved.has_aborted:
                state.transactions.held_from = saved.end
        return state
