"""The batches in a Fetch reply, and which of them belong to aborted transactions.

As in the Java client, that follows from the list in the reply and the markers in the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop

from moldau.broker.wire.batch import (
    CONTROL,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    TRANSACTIONAL,
    BatchHeader,
    CorruptBatch,
    read_header,
)
from moldau.broker.wire.messages.fetch import AbortedTransaction, PartitionData

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
ABORT_MARKER = b"\0\0\0\0"  # version 0 and type 0: the key of the record in a control batch


def batches_of(
    answer: PartitionData, isolation: int
) -> Iterator[tuple[BatchHeader, memoryview, bool]]:
    """Whole batches of a reply, each with whether its transaction was aborted."""
    records = answer.records
    if not records or isinstance(records, list):
        return
    view = memoryview(records)
    at, end = 0, len(view)
    transactions = AbortedTransactions(answer.aborted_transactions or []) if isolation else None
    while end - at >= HEADER_SIZE:
        length = int.from_bytes(view[at + 8 : at + 12], "big", signed=True)
        if length < HEADER_SIZE - LENGTH_OVERHEAD:
            raise CorruptBatch(f"batch length {length}")
        if at + LENGTH_OVERHEAD + length > end:
            return  # brokers may cut a reply off inside a batch
        header = read_header(view, at)
        data = view[at : at + header.size]
        at += header.size
        yield header, data, transactions is not None and transactions.see(header, data)


class AbortedTransactions:
    """Which batches of a reply belong to aborted transactions."""

    def __init__(self, aborted: list[AbortedTransaction]) -> None:
        self._coming = [(one.first_offset, one.producer_id) for one in aborted]
        heapify(self._coming)
        self._open: set[int] = set()

    def see(self, header: BatchHeader, data: memoryview) -> bool:
        """Takes the next batch; True if its transaction was aborted."""
        last = header.base_offset + header.last_offset_delta
        while self._coming and self._coming[0][0] <= last:
            self._open.add(heappop(self._coming)[1])
        if not header.attributes & TRANSACTIONAL:
            return False
        if header.attributes & CONTROL:
            if _is_abort_marker(data):
                self._open.discard(header.producer_id)
            return False
        return header.producer_id in self._open


def _is_abort_marker(data: memoryview) -> bool:
    """A control batch is one uncompressed record; its key of four bytes is the kind of marker."""
    # length, attributes, timestamp delta, offset delta and key length take one byte each.
    key = bytes(data[HEADER_SIZE + 5 : HEADER_SIZE + 9])
    return key == ABORT_MARKER
