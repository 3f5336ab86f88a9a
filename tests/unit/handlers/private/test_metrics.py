"""A report of thousands of rows does not hold up a worker."""

from __future__ import annotations

import asyncio
import time

from moldau.broker.handlers.private.metrics import TURN_NS, in_slices


async def test_others_have_turns_while_a_report_is_made() -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    rows = list(range(10))
    counting = asyncio.ensure_future(count_turns())
    seen = []
    async for row in in_slices(rows):
        seen.append(row)
        until = time.perf_counter_ns() + TURN_NS
        while time.perf_counter_ns() < until:  # a row as expensive as a whole turn
            pass
    counting.cancel()
    assert seen == rows
    assert turns >= len(seen) - 1
