"""LEASE: keeps the lease of the store for this worker, and tells routers until when it lasts.

Each worker renews the lease itself: the supervisor may be stopped while workers run, and a worker
while the supervisor runs. A worker that could not renew it in time cuts its clients off and serves
nobody (`broker/server/leased.py`). It keeps its memory: if the store comes back and no other broker
had the lease meanwhile, it serves again, and can write again what the store may have lost.
"""

from __future__ import annotations

import asyncio
import logging

from moldau.broker.errors import MoldauError, StoreFault
from moldau.broker.handlers.private.subscribers import Subscribers
from moldau.broker.net.lease import LOOK_EVERY_S, RENEW_EVERY_S, Lease
from moldau.broker.private.table import LEASE
from moldau.broker.server.connections import Connections
from moldau.broker.settings.processes import LeaseSettings
from moldau.broker.store.lease import Claimant, Verdict, renew
from moldau.broker.store.pipe import Pipe

logger = logging.getLogger("moldau.worker")

PATIENCE_S = 30.0  # a worker that starts waits this long


class LeaseLost(MoldauError):
    """Another broker serves the database now, or did since."""


class LeaseKeeper:
    def __init__(
        self, settings: LeaseSettings, lease: Lease, control: Pipe, connections: Connections
    ) -> None:
        self._claimant = Claimant(settings.token, settings.holder.encode(), settings.lease_ms)
        self._lease = lease
        self._control = control
        self._connections = connections
        self._is_cut = False
        self.routers = Subscribers(LEASE)

    async def begin(self) -> None:
        """Wait for the lease, which the supervisor has taken. Raises LeaseLost when another broker
        has it, StoreFault when the store does not say."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + PATIENCE_S
        while True:
            try:
                if await self._renew() is Verdict.YOURS:
                    return
            except StoreFault:
                if loop.time() >= give_up_at:
                    raise
            await asyncio.sleep(LOOK_EVERY_S)

    async def run(self) -> None:
        """Renew the lease every second, and look whether it is over, until cancelled."""
        loop = asyncio.get_running_loop()
        # Several when the store is slow: its lease would end before the next one was granted.
        renewing: set[asyncio.Task[None]] = set()
        await self._renew_quietly()  # loading may have taken longer than the lease
        next_at = loop.time() + RENEW_EVERY_S
        try:
            while True:
                await asyncio.sleep(LOOK_EVERY_S)
                self._look()
                if loop.time() >= next_at:
                    next_at = loop.time() + RENEW_EVERY_S
                    task = loop.create_task(self._renew_quietly())
                    renewing.add(task)
                    task.add_done_callback(renewing.discard)
        finally:
            for task in renewing:
                task.cancel()

    def _look(self) -> None:
        if self._lease.is_over():
            if not self._is_cut:
                self._is_cut = True
                logger.warning("clients are cut off: the lease of the store is over")
            self._connections.cut_clients()
        elif self._is_cut:
            self._is_cut = False
            logger.info("clients are served again")

    async def _renew_quietly(self) -> None:
        try:
            await self._renew()
        except LeaseLost:
            self._lease.lose()
            self.routers.keep(0)
            self._look()
        except StoreFault:
            pass  # asked again

    async def _renew(self) -> Verdict:
        """Raises StoreFault, LeaseLost."""
        sent = self._lease.now()
        verdict = await renew(self._control, self._claimant, is_over=self._lease.is_over())
        if verdict is Verdict.LOST or verdict is Verdict.ANOTHERS:
            raise LeaseLost("another broker serves this database now")
        if verdict is Verdict.YOURS:
            self._lease.renewed(sent)
            self.routers.keep(self._lease.until_ns)
        return verdict
