"""What worker and router processes share: start, limits, listening sockets, the tie to the
supervisor.

The protocol with the supervisor: settings come as one JSON line on standard input, which then stays
open; its end means that the supervisor is gone. The process prints `ready` when it serves. The
supervisor binds its sockets, and keeps them open when the process dies. Exit code BOOT_FAILED means
that the process could not start; the last line of standard error is the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn, Protocol, TypeVar

import msgspec
import uvloop

from moldau.broker.errors import MoldauError
from moldau.broker.logging_setup import set_up_logging
from moldau.broker.net import descriptors
from moldau.broker.net.accepting import PlainServer
from moldau.broker.settings.processes import ConfigError, Listener, RouterSettings, WorkerSettings
from moldau.broker.tls.accepting import TlsServer
from moldau.broker.tls.certificates import Certificates

BOOT_FAILED = 3
BACKLOG = 4096
# mallopt(3): M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, M_TOP_PAD. Freed memory is kept: otherwise frames
# of 128 KB and more would be mapped and unmapped one by one (332 us instead of 57 us).
MALLOC_OPTIONS = ((-3, 32 << 20), (-1, 256 << 20), (-2, 16 << 20))

S = TypeVar("S", WorkerSettings, RouterSettings)


class BootFailure(Exception):
    """The process cannot start. The text names cause and remedy."""


class Service(Protocol):
    """The service that a process runs."""

    async def startup(self) -> None: ...

    async def main_loop(self) -> None: ...

    async def shutdown(self) -> None: ...


# --- start and end ---


def run(
    role: str,
    settings_type: type[S],
    service: Callable[[S], Service],
    inherited: Sequence[int] = (),
) -> None:
    """Read the settings, run the service; exits with BOOT_FAILED when it cannot start.

    `inherited`: the sockets of all processes; those that the settings do not name are closed.
    """
    line = sys.stdin.buffer.readline()
    try:
        settings = msgspec.json.decode(line, type=settings_type)
    except msgspec.MsgspecError as fault:
        _fail(role, f"no settings on standard input: {fault}")
    for descriptor in set(inherited).difference(settings.descriptors):
        os.close(descriptor)
    set_up_logging(f"{role}-{settings.index}", settings.log_level, json=settings.log_json)
    prepare_process()
    try:
        uvloop.run(_serve(service, settings))
    except (BootFailure, MoldauError) as fault:
        _fail(role, str(fault))


async def _serve(service: Callable[[S], Service], settings: S) -> None:
    served = service(settings)
    await served.startup()
    await served.main_loop()
    await served.shutdown()


def prepare_process() -> None:
    """Raise the limit of descriptors as far as allowed, and tune the allocator."""
    descriptors.raise_limit()
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        for parameter, value in MALLOC_OPTIONS:
            libc.mallopt(parameter, value)


def collect_seldom() -> None:
    """Exempt what start-up allocated from garbage collection; requests leave no cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 20)


def _fail(role: str, reason: str) -> NoReturn:
    sys.stderr.write(f"moldau {role}: {reason}\n")
    sys.stderr.flush()
    sys.exit(BOOT_FAILED)


# --- listening ---


class Server(Protocol):
    """Something that accepts connections."""

    def close(self) -> None: ...


def listen(
    protocol: Callable[[], asyncio.BaseProtocol],
    sockets: Sequence[int],
    context: ssl.SSLContext | None = None,
    refuses: Callable[[str], bool] = lambda _: False,
    on_refused: Callable[[], None] = lambda: None,
) -> list[Server]:
    """Serve on sockets that the supervisor has bound, behind TLS if there is a `context`. This is
    the one place that chooses the transport.

    The sockets listen from the first call on, for as long as the supervisor has them open: after
    this process dies, the kernel still completes connections for the next one.
    """
    servers: list[Server] = []
    for descriptor in sockets:
        bound = socket.socket(fileno=descriptor)
        address = bound.getsockname()
        server: Server
        try:
            bound.listen(BACKLOG)
            if context is not None:
                server = TlsServer(protocol, bound, context, refuses, on_refused)
            else:
                server = PlainServer(protocol, bound, on_refused)
        except OSError as fault:
            text = f"cannot listen on {address}: {fault.strerror or fault}"
            raise BootFailure(f"{text}; choose another --host or --port") from None
        servers.append(server)
    return servers


class Listening:
    """The servers of a process, and the certificates of those that speak TLS."""

    def __init__(self) -> None:
        self._servers: list[Server] = []
        self._certificates: list[Certificates] = []
        self._watching: list[asyncio.Task[None]] = []

    async def begin(
        self,
        settings: WorkerSettings | RouterSettings,
        protocol: Callable[[Listener | None], asyncio.BaseProtocol],
        *,
        refuses: Callable[[str], bool] = lambda _: False,
        on_refused: Callable[[], None] = lambda: None,
        tells_expiry: bool = False,
    ) -> None:
        """`protocol` makes a protocol for a connection through a listener, or None for the unix
        socket; `refuses` tells which addresses have too many connections; `on_refused` counts
        connections that are closed for lack of descriptors. Raises BootFailure."""
        self._servers += listen(partial(protocol, None), [settings.unix_socket])
        for each in settings.listeners:
            accept = partial(protocol, each.listener)
            context = None
            if each.listener.tls is not None:
                try:
                    certificates = Certificates(each.listener, tells_expiry=tells_expiry)
                except ConfigError as error:
                    raise BootFailure(f"listener {each.listener.name}: {error}") from None
                self._certificates.append(certificates)
                self._watching.append(asyncio.ensure_future(certificates.watch()))
                context = certificates.context
            self._servers += listen(accept, each.descriptors, context, refuses, on_refused)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.reload)

    def reload(self) -> None:
        """Called on SIGHUP: read the certificates again, also if their files have not changed."""
        for certificates in self._certificates:
            certificates.reload()

    @property
    def failed_handshakes(self) -> int:
        return sum(each.failures for each in self._servers if isinstance(each, TlsServer))

    @property
    def certificate_expiries(self) -> list[tuple[str, int]]:
        return [each.expiry for each in self._certificates]

    def close(self) -> None:
        for server in self._servers:
            server.close()
        for task in self._watching:
            task.cancel()


# --- the supervisor ---


def watch_parent(gone: Callable[[], None]) -> None:
    """Call `gone` when standard input ends: the supervisor holds its other end."""
    loop = asyncio.get_running_loop()

    def readable() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            gone()

    loop.add_reader(0, readable)


def say_ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()
