"""The check of a partition that is read at read_committed: see stamped.py for that of any other.

Records of a transaction that its producer aborts name ABORTED instead of their producer: whoever
reads one has found a violation. Those that are committed are numbered as if the others had not
been written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from moldau.broker.wire.batch import CONTROL, TRANSACTIONAL, BatchHeader, Buffer
from moldau.broker.wire.messages.fetch import AbortedTransaction
from moldau.broker.wire.records import Record, read_records
from moldau.loadtest.users.client.stamped import (
    DECODED_LIMIT,
    NAME_BYTES,
    PartitionCheck,
    read_stamp,
)

ABORTED = b"aborted".ljust(NAME_BYTES, b".")
_ABORT_KEY = b"\x00\x00\x00\x00"  # of a marker: version 0, type 0


class CommittedCheck(PartitionCheck):
    """Leaves out what was aborted, as clients do by the list that comes with each response."""

    def __init__(self, partition: str, position: int) -> None:
        super().__init__(partition, position)
        self._listed: deque[AbortedTransaction] = deque()
        self._aborted: set[int] = set()  # producers that are in an aborted transaction just now

    def feed(self, batches: Buffer, aborted: Sequence[AbortedTransaction] = ()) -> list[str]:
        self._listed = deque(sorted(aborted, key=lambda one: one.first_offset))
        self._aborted.clear()
        return super().feed(batches)

    def _is_hidden(self, header: BatchHeader, batch: memoryview) -> bool:
        while self._listed and self._listed[0].first_offset < header.next_offset:
            self._aborted.add(self._listed.popleft().producer_id)
        if header.attributes & CONTROL:
            if _is_abort(batch):
                self._aborted.discard(header.producer_id)
            return True
        return bool(header.attributes & TRANSACTIONAL) and header.producer_id in self._aborted

    def _record(self, record: Record) -> Iterator[str]:
        stamp = read_stamp(record.value)
        if stamp is not None and stamp.producer == ABORTED:
            yield f"aborted: {self._partition} record at {record.offset} was, and is read"
            self.position = record.offset + 1
            return
        yield from super()._record(record)


def _is_abort(batch: memoryview) -> bool:
    return any(record.key == _ABORT_KEY for record in read_records(batch, DECODED_LIMIT))
