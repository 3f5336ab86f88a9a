"""One router process, `python -m moldau.router.router`, started beside the workers.

It reads its settings as one JSON line on standard input and prints `ready` on standard output when
it serves, which is when the workers do. Standard input stays open: when it ends, the supervisor is
gone and the router exits too. SIGTERM drains. With exit code 3 it could not start, and the last
line of standard error is the reason.

Several routers share the port with SO_REUSEPORT: the kernel spreads connections over them.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import cast

from moldau.broker.metrics.document import Document, Family, Kind, Sample
from moldau.broker.metrics.loop_lag import LoopLag
from moldau.broker.net import descriptors
from moldau.broker.net.lease import LEASE_MS, LOOK_EVERY_S, Lease
from moldau.broker.private.table import CONNECTION_LIMITS, ENDED_SESSIONS, LEASE
from moldau.broker.process import (
    Listening,
    collect_seldom,
    run,
    say_ready,
    watch_parent,
)
from moldau.broker.security.connection_limits import LimitsInForce
from moldau.broker.security.identity import EndedSessions
from moldau.broker.settings.processes import Listener, RouterSettings
from moldau.router.client_connection import ClientConnection
from moldau.router.state import RouterState
from moldau.router.workers import Subscriptions, Workers

logger = logging.getLogger("moldau.router")

DRAIN_SECONDS = 6.0
IDLE_CHECK_SECONDS = 60.0
# When a router is restarted, some workers may be down for longer: it serves what it can by then,
WORKERS_PATIENCE_S = 2.0
# but clients are not invited before every group has its coordinator, or this time has passed.
READY_PATIENCE_S = 30.0


class Refused(asyncio.Protocol):
    """A client that should look for another broker."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).abort()


class Router:
    """startup, main_loop, shutdown: the life of a router."""

    def __init__(self, settings: RouterSettings) -> None:
        self.settings = settings
        self._stop = asyncio.Event()
        self._listening = Listening()
        self._background: list[asyncio.Task[None]] = []
        self._clients: set[ClientConnection] = set()
        self._parent_gone = False
        self._lease = Lease(LEASE_MS)  # as the workers say

    async def startup(self) -> None:
        settings = self.settings
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        watch_parent(self._lost_parent)
        workers = Workers(settings.worker_sockets)
        subscriptions: Subscriptions = {CONNECTION_LIMITS: self._use_limits}
        if any(each.listener.uses_sasl for each in settings.listeners):
            subscriptions[ENDED_SESSIONS] = self._close_sessions
        if settings.has_lease:
            subscriptions[LEASE] = self._lease.extend
        workers.subscriptions = subscriptions
        self._state = RouterState(
            workers,
            settings.endpoints,
            settings.max_request_bytes,
            has_authorizer=settings.has_authorizer,
            has_telemetry=settings.has_telemetry,
            limits=settings.connection_limits,
            quota_windows=settings.quota_windows,
            inflight_bytes=settings.inflight_bytes,
        )
        self._loop_lag = LoopLag()
        self._state.report = self._report
        self._background = [
            asyncio.ensure_future(workers.watch(index)) for index in range(len(workers))
        ]
        self._background.append(asyncio.ensure_future(self._close_idle()))
        if settings.has_lease:
            self._background.append(asyncio.ensure_future(self._watch_lease()))
        await self._workers_up(WORKERS_PATIENCE_S)
        if not self._stop.is_set():
            await self._listen()
            await self._workers_up(READY_PATIENCE_S)

    async def _workers_up(self, patience_s: float) -> None:
        """Wait for the workers, or until the router is stopped."""
        up = asyncio.ensure_future(self._state.workers.until_up(patience_s))
        stopped = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait((up, stopped), return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        stopped.cancel()

    def _report(self) -> Document:
        clients = Family(
            "moldau_connections",
            Kind.GAUGE,
            "Open connections of clients.",
            samples=[Sample((), len(self._clients))],
            by_role=True,
        )
        listening = self._listening
        counted = self._state.limiter.counters.families(
            listening.failed_handshakes, listening.certificate_expiries
        )
        return Document(families=[self._loop_lag.family(), clients, *counted])

    def _accept(self, listener: Listener | None) -> asyncio.BaseProtocol:
        if listener is not None and self.settings.has_lease and self._lease.is_over():
            return Refused()
        return ClientConnection(self._state, self._clients, listener)

    async def _listen(self) -> None:
        # Routers show the same certificates as the workers: only one process logs when those
        # expire.
        first = self.settings.index == 0
        limiter = self._state.limiter
        # A client of a router has connections to the workers that it needs, at most to all of them.
        limiter.counts.most = descriptors.for_clients(1 + len(self.settings.worker_sockets))
        await self._listening.begin(
            self.settings,
            self._accept,
            refuses=limiter.refuses,
            on_refused=limiter.no_descriptor,
            tells_expiry=first,
        )

    def _use_limits(self, limits: LimitsInForce) -> None:
        """Apply limits that were changed at runtime."""
        self._state.limiter.counts.use(limits)

    def _close_sessions(self, ended: EndedSessions) -> None:
        """Close sessions of users that were removed or have another password."""
        for client in list(self._clients):
            if ended.concerns(client.identity):
                client.close()

    def _lost_parent(self) -> None:
        logger.error("the supervisor is gone, exiting")
        self._parent_gone = True
        self._stop.set()

    async def main_loop(self) -> None:
        if self._stop.is_set():
            return
        say_ready()
        self._loop_lag.start()
        logger.info("router %d serves on port %d", self.settings.index, self.settings.port)
        collect_seldom()
        await self._stop.wait()

    async def _watch_lease(self) -> None:
        """Cut clients off when this broker may not serve any more: no worker has its lease."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if self._lease.is_over():
                for client in list(self._clients):
                    if client.listener is not None:
                        client.abort()

    async def _close_idle(self) -> None:
        idle_s = self.settings.max_idle_ms / 1000
        if idle_s < 0:
            return
        while True:
            await asyncio.sleep(IDLE_CHECK_SECONDS)
            now = asyncio.get_running_loop().time()
            for client in list(self._clients):
                if client.is_idle(now, idle_s):
                    client.close()

    async def shutdown(self) -> None:
        """Accept no new connections, and wait for the replies to forwarded requests.

        The workers are stopped at the same time, and reply to parked requests.
        """
        self._loop_lag.stop()
        self._listening.close()
        for task in self._background:
            task.cancel()
        clients = self._clients
        for client in list(clients):
            client.drain()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (0 if self._parent_gone else DRAIN_SECONDS)
        while clients and loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        for client in list(clients):
            client.abort()
        await asyncio.gather(*self._background, return_exceptions=True)


if __name__ == "__main__":
    run("router", RouterSettings, Router)
