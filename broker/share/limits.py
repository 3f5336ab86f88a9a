"""What a share group is allowed, and what one fetch asks for."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class ShareLimits(NamedTuple):
    """The configuration of a group, held within the bounds of the broker (KIP-1240)."""

    lock_ms: int = 30_000
    delivery_count: int = 5
    """How often a record is delivered before it is archived."""
    max_records: int = 2_000
    """How many records may lie between the start and the end of what was handed out."""
    may_renew: bool = True

    @property
    def fewer_from(self) -> int:
        """The delivery count from which on fewer records are delivered together."""
        return max(2, (self.delivery_count + 1) // 2)


class AcquireMode(IntEnum):
    """The share acquire mode of a ShareFetch (KIP-1206)."""

    BATCH_OPTIMIZED = 0
    RECORD_LIMIT = 1


class Wish(NamedTuple):
    """How much a member wants to acquire at once."""

    max_records: int
    batch_size: int
    """From this many records on, a range of acquired records ends at the edge of a batch."""
    mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED
