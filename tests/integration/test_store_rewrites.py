"""The embedded store's file on a running broker."""

import asyncio
import os

import pytest
import redis

from moldau.ops.serve import store_files
from tests.support.brokers.running import Broker

pytestmark = pytest.mark.stdlib_loop  # as the supervisor runs it

MIB = 1 << 20


class MuchRoom:
    is_short = False

    def room_for_copies(self) -> int:
        return 1 << 40

    async def look(self) -> None:
        pass


async def test_a_store_whose_file_is_of_no_use_any_more_rewrites_it(
    moldau: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = moldau.status()["store"]["url"]
    store = redis.Redis.from_url(url)
    key, rewrites = "moldau-tests:large", store.info("persistence")["aof_rewrites"]
    monkeypatch.setattr(store_files, "LOOK_INTERVAL_S", 0.05)
    monkeypatch.setattr(store_files, "MIN_REWRITTEN_BYTES", MIB)
    try:
        task = asyncio.ensure_future(store_files.rewrite_when_worth_it(url, MuchRoom()))
        async with asyncio.timeout(60):
            while store.info("persistence")["aof_rewrites"] == rewrites:
                # Written over again and again: the file grows, what is in memory does not.
                store.set(key, os.urandom(4 * MIB))
                await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    finally:
        store.delete(key)
        store.close()
