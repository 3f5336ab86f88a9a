"""What can happen to a transactional id. Frozen values; handlers make them from requests.

`call` is the handler's token for the request, opaque here and never None. Each one gets exactly one
`Reply` effect, at once or later; the reply to a closed connection is dropped by the coordinator.

`version` is that of the request, as errors and rules differ:

    22 InitProducerId       below v4  INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED
    24 AddPartitionsToTxn   below v2  the same
    25 AddOffsetsToTxn      below v2  the same
    26 EndTxn               below v2  the same
                            v5+       raises the epoch (KIP-890)
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from moldau.broker.machine.effects import Persisted, TimerFired
from moldau.broker.txn.record import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Place


class Init(Struct, frozen=True):
    """InitProducerId with a transactional id. Answered by an `InitAnswer`.

    With a producer id and its epoch (KIP-360): a producer that goes on after an error. Without: a
    new process, which fences every producer before it.
    """

    call: object
    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    version: int = 5


class Add(Struct, frozen=True):
    """AddPartitionsToTxn, AddOffsetsToTxn, or a batch that joins. Answered by an `AddAnswer`."""

    call: object
    producer_id: int
    producer_epoch: int
    places: tuple[Place, ...]
    verify_only: bool = False
    """Nothing is added; the answer says which places are missing."""
    version: int = 5
    waits: bool = True
    """False, for requests of other workers: one that waited for markers would hold up all producers
    behind that link, so it gets CONCURRENT_TRANSACTIONS at once."""


class End(Struct, frozen=True):
    """EndTxn. Answered by an `EndAnswer` once the decision is stored."""

    call: object
    producer_id: int
    producer_epoch: int
    commit: bool
    version: int = 5


class MarkersWritten(Struct, frozen=True):
    """Every place of this transaction has its marker: what `WriteMarkers` asked for is done."""

    number: int


Request: TypeAlias = Init | Add | End
Event: TypeAlias = Request | Persisted | MarkersWritten | TimerFired
