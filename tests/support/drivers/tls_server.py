"""A TLS server of ours in the test's own event loop, with clients in threads."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

from moldau.broker.settings.processes import Listener, TlsSettings
from moldau.broker.tls.accepting import TlsServer
from moldau.broker.tls.certificates import Certificates as ServedCertificates

T = TypeVar("T")


class Served(NamedTuple):
    server: TlsServer
    certificates: ServedCertificates
    address: tuple[str, int]


@asynccontextmanager
async def tls_served(
    protocol: Callable[[], asyncio.BaseProtocol],
    tls: TlsSettings,
    refuses: Callable[[str], bool] = lambda _: False,
) -> AsyncIterator[Served]:
    listener = Listener(name="SSL", protocol="SSL", tls=tls)
    certificates = ServedCertificates(listener, tells_expiry=True)
    listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
    address = listening.getsockname()
    server = TlsServer(protocol, listening, certificates.context, refuses)
    try:
        yield Served(server, certificates, address)
    finally:
        server.close()


def connected(address: tuple[str, int], ca: Path, certificate: Path | None = None) -> ssl.SSLSocket:
    """Blocks: for threads."""
    context = ssl.create_default_context(cafile=str(ca))
    if certificate is not None:
        context.load_cert_chain(certificate)
    raw = socket.create_connection(address, 30)
    return context.wrap_socket(raw, server_hostname="localhost")


async def in_thread(work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, work)
