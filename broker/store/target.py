"""The address of the store: parses a redis-py URL and opens connections to it."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any

from redis.asyncio.connection import SSLConnection, parse_url

from broker.store.check import mask

OPEN_TIMEOUT = 5.0
SEND_BUFFER = 4 << 20


class Target:
    """A `redis://`, `rediss://` or `unix://` URL, with redis-py's parameters."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.label = mask(url)  # the URL without secrets, for log lines
        options: dict[str, Any] = dict(parse_url(url))
        self._path: str | None = options.get("path")
        self._host: str = options.get("host", "localhost")
        self._port: int = options.get("port", 6379)
        self._database: int = options.get("db", 0)
        self._username: str | None = options.get("username")
        self._password: str | None = options.get("password")
        self._tls = _tls_context(options)

    async def open(
        self, loop: asyncio.AbstractEventLoop, protocol: Callable[[], asyncio.Protocol]
    ) -> None:
        async with asyncio.timeout(OPEN_TIMEOUT):
            if self._path is not None:
                transport, _ = await loop.create_unix_connection(protocol, self._path)
                # So that an append of 1 MB is one write, not several with waits in between.
                raw = transport.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
                return
            transport, _ = await loop.create_connection(
                protocol, self._host, self._port, ssl=self._tls
            )
        raw = transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def handshake(self, name: str) -> list[tuple[str | int, ...]]:
        """The first commands of a new connection; the reply of the last one is the client id."""
        words: list[tuple[str | int, ...]] = []
        if self._password is not None:
            user = (self._username,) if self._username else ()
            words.append(("AUTH", *user, self._password))
        if self._database:
            words.append(("SELECT", self._database))
        words.append(("CLIENT", "SETNAME", name))
        words.append(("CLIENT", "ID"))
        return words


def _tls_context(options: dict[str, Any]) -> ssl.SSLContext | None:
    if options.get("connection_class") is not SSLConnection:
        return None
    context = ssl.create_default_context(cafile=options.get("ssl_ca_certs"))
    if certificate := options.get("ssl_certfile"):
        context.load_cert_chain(certificate, options.get("ssl_keyfile"))
    if options.get("ssl_check_hostname") in (False, "false", "False"):
        context.check_hostname = False
    if options.get("ssl_cert_reqs") in ("none", "CERT_NONE", ssl.CERT_NONE):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
