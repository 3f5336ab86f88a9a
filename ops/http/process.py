"""`python -m ops.http.process`: the HTTP process, started by the supervisor beside the broker.

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

import msgspec
import uvicorn
import uvloop

from broker.logging_setup import set_up_logging
from broker.process import say_ready, watch_parent
from ops.http.app import HttpApp
from ops.http.reports import Reporters
from ops.http.settings import HttpSettings

logger = logging.getLogger("moldau.http")

DRAIN_SECONDS = 2
OFF = "There is no console here: it needs a loopback address, and --secure where clients log in\n"


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
    uvloop.run(_serve(settings))


async def _serve(settings: HttpSettings) -> None:
    reporters = Reporters(settings.control_socket, settings.worker_sockets, settings.router_sockets)
    app = HttpApp(reporters)
    sampling = _add_console(app, settings)
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=DRAIN_SECONDS,
        limit_concurrency=256,
    )
    sockets = [socket.socket(fileno=descriptor) for descriptor in settings.listeners]
    logger.info("metrics and health: http://%s", settings.address)
    try:
        await Server(config).serve(sockets)
    finally:
        if sampling is not None:
            sampling.cancel()


def _add_console(app: HttpApp, settings: HttpSettings) -> asyncio.Task[None] | None:
    """Let the console serve all other paths, if it is installed and wanted."""
    if settings.console == "off":
        app.why_no_console = OFF
        return None
    try:
        from ops.console.app import create_app
    except ModuleNotFoundError as missing:
        logger.info("no console: %s is not installed (pip install 'moldau[console]')", missing.name)
        return None
    from ops.console.backend import Backend
    from ops.local_broker import find_local_broker

    backend = Backend(settings.port, app.reports, lambda: find_local_broker(settings.port))
    app.console = create_app(
        backend,
        hosts=frozenset(settings.hosts),
        login=settings.console_login,
        read_only=settings.console == "read-only",
    )
    return asyncio.ensure_future(backend.sample())


if __name__ == "__main__":
    main()
