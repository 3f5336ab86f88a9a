"""What is shown of a share-partition."""

from __future__ import annotations

from typing import NamedTuple


class RunView(NamedTuple):
    """Records with consecutive offsets and the same state, count and lock."""

    first: int
    last: int
    state: str
    delivery_count: int
    member: str
    """Empty if no member has them."""
    lock_left_ms: int


class PartitionView(NamedTuple):
    start: int
    """-1: not resolved."""
    end: int
    in_flight: int
    finished: int
    """Finished records between start and end: they count for the lag."""
    runs: list[RunView]
