"""The events of a transactional id: frozen values that handlers make from requests.

`call` is the handler's reply handle, opaque here and never None. Each one gets exactly one `Reply`
effect, at once or later; the reply to a closed connection is dropped by the coordinator.

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

from moldau.broker.machine import Persisted, TimerFired
from moldau.broker.txn.record import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TxnPartition


class Init(Struct, frozen=True):
    """InitProducerId with a transactional id. Answered by an `InitAnswer`.

    With a producer id and its epoch (KIP-360), a producer continues after an error. Without them, a
    new process fences every earlier producer.
    """

    call: object
    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    version: int = 5


class Add(Struct, frozen=True):
    """AddPartitionsToTxn, AddOffsetsToTxn, or a batch that enlists itself. Answered by an
    `AddAnswer`."""

    call: object
    producer_id: int
    producer_epoch: int
    partitions: tuple[TxnPartition, ...]
    verify_only: bool = False
    """Add nothing; the answer says which partitions are missing."""
    version: int = 5
    waits: bool = True
    """False for requests of other workers: waiting for markers would delay all producers behind
    that connection, so such a request gets CONCURRENT_TRANSACTIONS at once."""


class End(Struct, frozen=True):
    """EndTxn. Answered by an `EndAnswer` once the decision is stored."""

    call: object
    producer_id: int
    producer_epoch: int
    commit: bool
    version: int = 5


class MarkersWritten(Struct, frozen=True):
    """Every partition of this transaction has its marker, as `WriteMarkers` requested."""

    number: int


Request: TypeAlias = Init | Add | End
Event: TypeAlias = Request | Persisted | MarkersWritten | TimerFired
