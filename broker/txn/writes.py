"""The write of a transactional id, and the requests that wait for it.

There is one write in flight. The record in memory is replaced when it has succeeded, so a failed
write needs no undoing.
"""

from __future__ import annotations

from msgspec import Struct, field

from moldau.broker.txn.effects import Answer, WriteMarkers
from moldau.broker.txn.events import Request
from moldau.broker.txn.record import TxnRecord


class Waiting(Struct):
    """A request that waits for the write in flight, or for the markers of a transaction."""

    event: Request
    until_ms: int | None = None
    """When it gets CONCURRENT_TRANSACTIONS; None until it has met Prepare*."""


class Write(Struct):
    """A write that is being prepared or is in flight."""

    record: TxnRecord | None
    """None to remove the id."""
    changes: bool = True
    """False if the id is stored unchanged, because the store has something older or in doubt."""
    takes_more: bool = False
    """True if it adds partitions: other waiting requests may add theirs to the same write."""
    answers: list[tuple[Request, Answer]] = field(default_factory=list)
    """The answers to send once it has succeeded."""
    looked_at_again: list[Waiting] = field(default_factory=list)
    """The InitProducerId that aborts an open transaction first, and is decided again afterwards."""
    markers: list[WriteMarkers] = field(default_factory=list)
    """The markers that the store may have lost; written once this write has succeeded."""

    def requests(self) -> list[Request]:
        answered = [event for event, _ in self.answers]
        return answered + [waiting.event for waiting in self.looked_at_again]
