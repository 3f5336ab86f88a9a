"""What is being stored of a transactional id, and who waits for it.

There is one write in flight. The record in memory is replaced when it has succeeded: if it fails,
nothing has to be taken back.
"""

from __future__ import annotations

from msgspec import Struct, field

from moldau.broker.txn.effects import Answer, WriteMarkers
from moldau.broker.txn.events import Request
from moldau.broker.txn.record import TxnRecord


class Waiting(Struct):
    """A request that waits: for the write in flight, or for the markers of a transaction."""

    event: Request
    until_ms: int | None = None
    """When it gets CONCURRENT_TRANSACTIONS; None as long as it has not met Prepare*."""


class Write(Struct):
    """A write that is being put together or is in flight."""

    record: TxnRecord | None
    """None: the id is removed."""
    changes: bool = True
    """False: the id is stored as it was, because the store has something older or in doubt."""
    takes_more: bool = False
    """It adds partitions; others that wait may be added by the same write."""
    answers: list[tuple[Request, Answer]] = field(default_factory=list)
    """Sent once it has succeeded."""
    looked_at_again: list[Waiting] = field(default_factory=list)
    """InitProducerId that aborts an open transaction first."""
    markers: list[WriteMarkers] = field(default_factory=list)
    """Those that the store may have lost; asked for once the write has succeeded."""

    def requests(self) -> list[Request]:
        answered = [event for event, _ in self.answers]
        return answered + [waiting.event for waiting in self.looked_at_again]
