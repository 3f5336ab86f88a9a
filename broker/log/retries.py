"""Batches that producers were asked to send again: later ones of theirs must not overtake them.

In a log that lost nothing a skipped sequence is refused anyway. Where batches may be lost, or a
producer is unknown, any later sequence has to be accepted (see state.py). If that were the one
behind a batch that just failed, the retry of that batch would be out of order for good, which stops
most clients. Refused instead, the later batch is sent again behind the first.
"""

from __future__ import annotations

from broker.errors import ErrorCode, KafkaError
from broker.log.state import SEQUENCE_MODULUS
from broker.wire.batch import NO_PRODUCER_ID, BatchHeader

PRODUCERS_KEPT = 1_000  # some never come back


class AwaitedRetries:
    """Of one log: the first batch that failed, of each producer. Empty as long as none does."""

    __slots__ = ("_first",)

    def __init__(self) -> None:
        self._first: dict[int, BatchHeader] = {}

    def __bool__(self) -> bool:
        return bool(self._first)

    def failed(self, header: BatchHeader) -> None:
        """The producer got an error that makes it send the batch again."""
        if header.producer_id == NO_PRODUCER_ID or self._is_after_first(header):
            return
        self._first.pop(header.producer_id, None)
        self._first[header.producer_id] = header
        if len(self._first) > PRODUCERS_KEPT:
            del self._first[next(iter(self._first))]

    def check(self, header: BatchHeader, expected: int | None) -> None:
        """Refuse a batch that skips one which will be sent again; `expected`: the next sequence."""
        if header.base_sequence != expected and self._is_after_first(header):
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id}: a batch before {header.base_sequence} has failed",
            )
        self._first.pop(header.producer_id, None)

    def _is_after_first(self, header: BatchHeader) -> bool:
        first = self._first.get(header.producer_id)
        if first is None or first.producer_epoch != header.producer_epoch:
            return False
        ahead = (header.base_sequence - first.base_sequence) % SEQUENCE_MODULUS
        return 0 < ahead < SEQUENCE_MODULUS // 2
