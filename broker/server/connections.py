"""The open connections of a worker: makes them, and tells all of them what has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from moldau.broker.metrics.request_counters import RequestCounters
from moldau.broker.net.lease import Lease
from moldau.broker.security.quota_usage import Usages
from moldau.broker.server.call import Dispatch, Limiter
from moldau.broker.server.connection import Connection
from moldau.broker.server.leased import leased
from moldau.broker.server.limits import Budget
from moldau.broker.server.login import Logins
from moldau.broker.server.metering import ClientMetering
from moldau.broker.settings.processes import Listener

IDLE_CHECK_S = 60.0


class Connections:
    def __init__(
        self,
        dispatch: Dispatch,
        budget: Budget,
        max_frame: int,
        counters: RequestCounters,
        logins: Mapping[str, Logins],
        limiter: Limiter,
        lease: Lease | None = None,
    ) -> None:
        """`logins`: by the listeners whose clients have to log in. `lease`: None if no other broker
        can take over the store."""
        self._connection = Connection if lease is None else leased(lease)
        self.open: set[Connection] = set()
        self._dispatch = dispatch
        self._budget = budget
        self._max_frame = max_frame
        self._counters = counters
        self._logins = logins
        self._limiter = limiter
        self._metering: ClientMetering | None = None  # None: no client has a quota

    def make(self, listener: Listener | None) -> Connection:
        return self._connection(
            self._dispatch,
            self._budget,
            self.open,
            self._max_frame,
            listener,
            self._counters,
            logins=self._logins,
            metering=self._metering,
            limiter=self._limiter,
        )

    def use_quotas(self, usages: Usages | None) -> None:
        """Meter all clients from now on; None: none of them."""
        self._metering = None if usages is None else ClientMetering(usages)
        for connection in self.open:
            connection.metering = self._metering

    def forget_routes(self) -> None:
        """Check every request again (see `RequestRoute`): clients' rights have changed, or every
        request is to be logged."""
        for connection in self.open:
            connection.forget_routes()

    async def close_idle(self, max_idle_ms: Callable[[], int]) -> None:
        """Close idle connections, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(IDLE_CHECK_S)
            idle_ms = max_idle_ms()
            if idle_ms < 0:
                continue
            before = loop.time() - idle_ms / 1000
            for connection in list(self.open):
                if connection.is_idle and connection.last_active < before:
                    connection.close_idle()

    def cut_clients(self) -> None:
        """Abort the connections of clients, those behind routers too."""
        for connection in list(self.open):
            if connection.is_clients:
                connection.abort()

    def drain(self) -> None:
        for connection in list(self.open):
            connection.drain()

    async def closed(self, seconds: float) -> None:
        """Wait until the last one is closed; abort those that are still open after `seconds`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while self.open and loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        for connection in list(self.open):
            connection.abort()
