"""What a worker knows of a partition: a fold over its log. Pure: no I/O, no clock.

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
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from broker.errors import ErrorCode, KafkaError
from broker.wire.batch import NO_PRODUCER_ID, BatchHeader

REMEMBERED_BATCHES = 5
SEQUENCE_MODULUS = 1 << 31


class KnownBatch(msgspec.Struct, array_like=True, frozen=True, gc=False):
    first_sequence: int
    last_sequence: int
    base_offset: int
    timestamp: int


class Producer(msgspec.Struct, array_like=True, frozen=True):
    """An idempotent producer on one partition. Replaced, never changed: checks can be dropped."""

    epoch: int
    batches: tuple[KnownBatch, ...]

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence

    @property
    def last_offset(self) -> int:
        """The base offset of its last batch."""
        return self.batches[-1].base_offset


class Silence(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Since when, by a worker's clock, a producer's last batch has been this one."""

    base_offset: int
    since_ms: int


class Duplicate(NamedTuple):
    """The batch is in the log already; this is where."""

    base_offset: int
    timestamp: int


class Snapshot(msgspec.Struct, array_like=True):
    """The fold up to `end`, as it is saved beside the log."""

    end: int
    size: int
    entries: int
    max_timestamp: int
    max_timestamp_base: int
    producers: dict[int, Producer]
    silent: dict[int, Silence] = {}


_encode_snapshot = msgspec.msgpack.Encoder().encode
_decode_snapshot = msgspec.msgpack.Decoder(Snapshot).decode


class LogState:
    """End offset, bytes, timestamps and producers of a log, up to its last known entry."""

    __slots__ = (
        "end", "entries", "epoch_start", "max_timestamp", "max_timestamp_base", "producers",
        "silent", "size",
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
        if known.last_offset >= self.epoch_start or header.producer_epoch != known.epoch:
            return False
        ahead = (header.base_sequence - expected) % SEQUENCE_MODULUS
        return ahead < SEQUENCE_MODULUS // 2

    def next_sequence(self, header: BatchHeader, ahead: dict[int, Producer]) -> int | None:
        """What the producer's next batch begins with; None if it or its epoch is unknown."""
        known = ahead.get(header.producer_id) or self.producers.get(header.producer_id)
        if known is None or known.epoch != header.producer_epoch:
            return None
        return (known.last_sequence + 1) % SEQUENCE_MODULUS

    def begin_epoch(self, start: int) -> None:
        """The current leader epoch begins at `start`: nothing is before it that is not known."""
        self.epoch_start = start
        self.end = max(self.end, start)

    def advance(
        self, header: BatchHeader, base_offset: int, ahead: dict[int, Producer]
    ) -> Producer | None:
        """The producer of a batch once it stands at `base_offset`; the state does not change."""
        producer_id = header.producer_id
        if producer_id == NO_PRODUCER_ID:
            return None
        known = ahead.get(producer_id) or self.producers.get(producer_id)
        first = header.base_sequence
        last = (first + header.last_offset_delta) % SEQUENCE_MODULUS
        batch = KnownBatch(first, last, base_offset, header.max_timestamp)
        if known is None or known.epoch != header.producer_epoch:
            return Producer(header.producer_epoch, (batch,))
        return Producer(known.epoch, (*known.batches, batch)[-REMEMBERED_BATCHES:])

    def appended(
        self, end: int, size: int, max_timestamp: int, base: int, producers: dict[int, Producer]
    ) -> None:
        """An entry checked with `check` and `advance` is in the log."""
        self.end = end
        self.size += size
        self.entries += 1
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_base = base
        if producers:
            self.producers.update(producers)

    def apply(self, headers: Iterable[BatchHeader], size: int) -> None:
        """An entry read from the log, which is right whatever it holds."""
        for header in headers:
            producer = self.advance(header, header.base_offset, {})
            if producer is not None and header.base_sequence >= 0:
                self.producers[header.producer_id] = producer
            if header.max_timestamp > self.max_timestamp:
                self.max_timestamp = header.max_timestamp
                self.max_timestamp_base = header.base_offset
            self.end = header.next_offset
        self.size += size
        self.entries += 1

    def forget_producers(self, now_ms: int, kept_ms: int) -> None:
        """Forget producers that have written nothing for `kept_ms`.

        By our own clock, from the first time their last batch was seen to be their last. Record
        timestamps do not count, so that a producer of old records is kept as long as any other.
        """
        silent = {}
        for producer_id, producer in list(self.producers.items()):
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
        return state
