"""Stream commands that ordinary logs, cleaned logs and native topics share."""

from __future__ import annotations

from typing import Literal

from moldau.broker.errors import StoreRefused
from moldau.broker.store.pipe import Pipe

# Entries freed by one command: 1,000 take Redis about a millisecond.
TRIM_STEP = 1000
_CREATOR = "moldau-create"


def is_busy_group(fault: object) -> bool:
    """Does the consumer group exist already?"""
    return isinstance(fault, StoreRefused) and str(fault).startswith("BUSYGROUP")


def is_missing_stream(fault: StoreRefused) -> bool:
    """Did an XGROUP command find no such key?"""
    return "requires the key to exist" in str(fault)


async def create_empty(control: Pipe, key: bytes) -> None:
    """Create an empty stream, unless there is one. Only XGROUP can: XADD needs an entry."""
    try:
        await control.ask("XGROUP", "CREATE", key, _CREATOR, "$", "MKSTREAM")
    except StoreRefused as fault:
        if not is_busy_group(fault):  # another worker is creating it right now
            raise
    await control.ask("XGROUP", "DESTROY", key, _CREATOR)


async def trim(
    control: Pipe, key: bytes, by: Literal["MINID", "MAXLEN"], threshold: bytes | int
) -> int:
    """Remove old entries by whole stream nodes, a bounded step at a time; returns how many."""
    removed = 0
    while step := await control.ask("XTRIM", key, by, "~", threshold, "LIMIT", TRIM_STEP):
        removed += step
    return removed


async def trim_before(control: Pipe, key: bytes, first_kept: bytes) -> int:
    """Remove every entry below an id; returns how many."""
    removed = await trim(control, key, "MINID", first_kept)
    # `~` stops at the edge of a node: what is left is less than one node.
    rest: int = await control.ask("XTRIM", key, "MINID", "=", first_kept)
    return removed + rest
