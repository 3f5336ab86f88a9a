"""A worker keeps the lease of a real store."""

from __future__ import annotations

import asyncio
import contextlib
from typing import cast

import redis

from moldau.broker.handlers.private.lease import LeaseKeeper
from moldau.broker.net.lease import LEASE_MS, Lease
from moldau.broker.server.connections import Connections
from moldau.broker.settings.processes import LeaseSettings
from moldau.broker.store.blocking import BlockingStore
from moldau.broker.store.connector import Connector
from moldau.broker.store.lease import TAKE, Claimant
from moldau.broker.store.pipe import Pipe
from tests.support.drivers.connections import until
from tests.support.stores.redis_server import RedisServer

HOLDER = '{"host":"a","token":"t"}'


class Cuts:
    """Counts how often clients were cut off."""

    count = 0

    def cut_clients(self) -> None:
        self.count += 1


async def test_a_worker_that_loaded_for_longer_than_the_lease_cuts_nobody_off(
    server: RedisServer,
) -> None:
    with redis.Redis.from_url(server.url) as raw, BlockingStore(server.url) as store:
        raw.flushall()
        store.lease(Claimant("t", HOLDER.encode(), LEASE_MS), TAKE)  # the supervisor's
    pipe = Pipe(Connector(server.url), "test")
    await pipe.connect()
    lease, cuts = Lease(LEASE_MS), Cuts()
    settings = LeaseSettings(token="t", holder=HOLDER, lease_ms=LEASE_MS)
    keeper = LeaseKeeper(settings, lease, pipe, cast("Connections", cuts))
    running = asyncio.ensure_future(keeper.run())
    try:
        await until(lambda: not lease.is_over())
        assert not cuts.count
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        pipe.close()
