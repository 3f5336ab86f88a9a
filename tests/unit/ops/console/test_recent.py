"""Snapshot are shared for a moment, in proportion to what they cost."""

from __future__ import annotations

import asyncio

from moldau.ops.console.backend import RecentSnapshot
from moldau.ops.http.snapshot import Snapshot


class Asked:
    def __init__(self) -> None:
        self.count = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self) -> Snapshot:
        self.count += 1
        await self.gate.wait()
        return Snapshot(None, [], [])


async def test_what_costs_nothing_is_asked_each_time_and_what_is_expensive_is_not() -> None:
    asked = Asked()
    recent = RecentSnapshot(asked)
    await recent()
    before = asked.count
    await asyncio.sleep(0.05)
    await recent()
    assert asked.count == before + 1
    asked.gate.clear()
    asyncio.get_running_loop().call_later(0.5, asked.gate.set)
    expensive = await recent.renew()
    count = asked.count
    assert await recent() is expensive
    assert asked.count == count


async def test_a_change_is_seen_even_if_a_report_was_under_way() -> None:
    asked = Asked()
    recent = RecentSnapshot(asked)
    asked.gate.clear()
    under_way = asyncio.ensure_future(recent.renew())
    await asyncio.sleep(0.3)  # long enough to be shared afterwards
    recent.forget()
    asked.gate.set()
    await under_way
    assert await recent() is not under_way.result()
