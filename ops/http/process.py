"""The HTTP process, `python -m moldau.ops.http.process`: started beside the broker.

Metrics, health and the console on one address. The broker does not need it: if it cannot start or
dies, the supervisor tries again, and clients of the broker notice nothing.

Settings are one JSON line on standard input, whose end means that the supervisor is gone; it prints
`ready` when it serves, as workers and routers do.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from functools import partial

import msgspec
import uvicorn
import uvloop

from moldau.broker.logging_setup import set_up_logging
from moldau.broker.private.table import ENDED_SESSIONS
from moldau.broker.process import prepare_process, say_ready, watch_parent
from moldau.broker.settings.processes import Listener
from moldau.broker.tls.certificates import Certificates
from moldau.ops.http.app import HttpApp
from moldau.ops.http.collector import Collector
from moldau.ops.http.connections import BoundedProtocol
from moldau.ops.http.settings import HttpSettings
from moldau.router.workers import Workers

logger = logging.getLogger("moldau.http")

DRAIN_SECONDS = 2
# Whose X-Forwarded-For is believed, where browsers come through a proxy.
PROXIES = "127.0.0.1,::1"


class Server(uvicorn.Server):
    """Says when it serves, and ends with the supervisor."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            watch_parent(self._lost_parent)
            say_ready()

    def _lost_parent(self) -> None:
        self.should_exit = self.force_exit = True


def main() -> None:
    settings = msgspec.json.decode(sys.stdin.buffer.readline(), type=HttpSettings)
    set_up_logging("http-0", settings.log_level, json=settings.log_json)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    prepare_process()
    uvloop.run(_serve(settings))


async def _serve(settings: HttpSettings) -> None:
    collector = Collector(settings.control_socket, settings.worker_sockets, settings.router_sockets)
    app = HttpApp(collector)
    background = _add_console(app, settings)
    context = None
    if settings.tls is not None:
        listener = Listener(name="HTTP", protocol="SSL", tls=settings.tls)
        certificates = Certificates(listener, tells_expiry=False)
        context = certificates.context
        background.append(asyncio.ensure_future(certificates.watch()))
    config = uvicorn.Config(
        app,
        ssl_context_factory=None if context is None else lambda *_: context,
        proxy_headers=settings.is_proxied,
        forwarded_allow_ips=PROXIES,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=DRAIN_SECONDS,
        # Not limit_concurrency: it would refuse metrics and health as well.
        http=BoundedProtocol,
        ws="none",
    )
    sockets = [socket.socket(fileno=descriptor) for descriptor in settings.listeners]
    scheme = "http" if context is None else "https"
    logger.info("metrics and health: %s://%s", scheme, settings.address)
    try:
        await Server(config).serve(sockets)
    finally:
        for each in background:
            each.cancel()


def _add_console(app: HttpApp, settings: HttpSettings) -> list[asyncio.Task[None]]:
    """Let the console serve all other paths, if it is wanted."""
    if settings.console == "off":
        app.why_no_console = f"There is no console here: {settings.why_no_console}\n"
        return []
    from moldau.ops.console.app import create_app
    from moldau.ops.console.backend import Backend
    from moldau.ops.console.login import Logins
    from moldau.ops.console.sessions import Sessions
    from moldau.ops.local_broker import find_local_broker

    logins = None
    if settings.login is not None:
        logins = Logins(settings.login, settings.worker_sockets)
    backend = Backend(
        settings.port,
        app.snapshot,
        partial(find_local_broker, settings.port, settings.router_ports),
        logins,
    )
    sessions = Sessions()
    app.console = create_app(
        backend,
        sessions,
        hosts=frozenset(settings.hosts),
        is_secure=settings.tls is not None or settings.is_proxied,
        read_only=settings.console == "read-only",
    )
    background = [asyncio.ensure_future(backend.sample())]
    if logins is not None:
        # They say when a user was removed, or has another password.
        workers = Workers(settings.worker_sockets)
        workers.subscriptions = {ENDED_SESSIONS: sessions.users_changed}
        background += [asyncio.ensure_future(workers.watch(index)) for index in range(len(workers))]
    return background


if __name__ == "__main__":
    main()
