"""Batches that producers were asked to send again: later ones of theirs must not overtake them.

A batch behind one that failed skips its sequence numbers. Kafka refuses it as out of order, which
makes librdkafka begin a new producer epoch for all of its partitions: whatever else it is about to
send again, and may be in a log already, is then stored twice. So the later batch gets a retriable
error as well, and comes again behind the first.

In a log that lost nothing the state refuses a batch that skips a sequence. Where batches may be
lost, or a producer is unknown, it accepts any later one (see state/log_state.py), and the retry of
the first would be out of order for good: that is refused here.

A producer that has given a batch up does not send it again: after a while what skips it is out of
order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from moldau.broker.errors import ErrorCode, KafkaError
from moldau.broker.log.state.log_state import SEQUENCE_MODULUS
from moldau.broker.wire.batch import NO_PRODUCER_ID, BatchHeader

PRODUCERS_KEPT = 1_000  # some never come back
# Clients send a batch again after these errors; some are translated for them (produce_many.py).
SENT_AGAIN = (
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)
AWAITED_S = 120.0  # clients send a batch again within seconds, and few try for longer than this


class Failed(NamedTuple):
    header: BatchHeader
    at: float


class FailedBatches:
    """The first batch of each producer that failed in one log. Empty as long as none has."""

    __slots__ = ("_clock", "_first")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._first: dict[int, Failed] = {}

    def __bool__(self) -> bool:
        return bool(self._first)

    def failed(self, header: BatchHeader) -> None:
        """The producer got an error that makes it send the batch again."""
        if header.producer_id == NO_PRODUCER_ID or header.base_sequence < 0:
            return  # not idempotent; a marker
        if self.awaits_one_before(header):
            return
        self._first.pop(header.producer_id, None)
        self._first[header.producer_id] = Failed(header, self._clock())
        if len(self._first) > PRODUCERS_KEPT:
            del self._first[next(iter(self._first))]

    def check(self, header: BatchHeader, expected: int | None) -> None:
        """Refuse a batch that skips one which will be sent again; `expected`: the next sequence."""
        if header.base_sequence != expected and self.awaits_one_before(header):
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id}: a batch before {header.base_sequence} has failed",
            )
        self._first.pop(header.producer_id, None)

    def answer(self, header: BatchHeader, refusal: KafkaError) -> KafkaError:
        """The error that the producer of a refused batch gets."""
        out_of_order = refusal.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if out_of_order and self.awaits_one_before(header):
            text = f"{refusal}; send it again behind the batch that failed before it"
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, text)
        return refusal

    def awaits_one_before(self, header: BatchHeader) -> bool:
        failed = self._first.get(header.producer_id)
        if failed is None or failed.header.producer_epoch != header.producer_epoch:
            return False
        if self._clock() - failed.at > AWAITED_S:
            del self._first[header.producer_id]
            return False
        ahead = (header.base_sequence - failed.header.base_sequence) % SEQUENCE_MODULUS
        return 0 < ahead < SEQUENCE_MODULUS // 2
