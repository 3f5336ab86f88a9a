"""Opens connections to the store; with Sentinel, to the server that is the master now."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from moldau.broker.errors import StoreUnavailable
from moldau.broker.store.sentinel import Sentinels
from moldau.broker.store.store_url import Address, StoreUrl

OPEN_TIMEOUT = 5.0
# Shorter: until the sentinels know of a failover they name a server that may be unreachable.
OPEN_MASTER_TIMEOUT = 2.0
SEND_BUFFER = 4 << 20


class Connector:
    """Connects to the server that a store URL (`store_url.py`) names."""

    def __init__(self, url: str) -> None:
        self._url = StoreUrl(url)
        self.label = self._url.label
        self._path = self._url.path
        self._address = self._url.address
        self._tls = self._url.tls_context()
        self.sentinels = Sentinels(self._url, self._tls) if self._url.sentinels else None

    async def open(
        self, loop: asyncio.AbstractEventLoop, protocol: Callable[[], asyncio.BaseProtocol]
    ) -> Address | None:
        """Open a connection. Returns the server as it was named; None: a unix socket."""
        if self._path is not None:
            async with asyncio.timeout(OPEN_TIMEOUT):
                transport, _ = await loop.create_unix_connection(protocol, self._path)
            # So that an append of 1 MB is one write, not several with waits in between.
            raw = transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
            return None
        address, patience = self._address, OPEN_TIMEOUT
        if self.sentinels is not None:
            address, patience = await self.sentinels.master(), OPEN_MASTER_TIMEOUT
        async with asyncio.timeout(patience):
            transport, _ = await loop.create_connection(protocol, *address, ssl=self._tls)
        raw = transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return address

    def handshake(self, name: str) -> list[tuple[str | int, ...]]:
        """The first commands of a new connection. `accept` gets their replies."""
        words: list[tuple[str | int, ...]] = []
        if auth := self._url.credentials.words:
            words.append(auth)
        if self._url.database:
            words.append(("SELECT", self._url.database))
        words.append(("CLIENT", "SETNAME", name))
        words.append(("PING",))  # refused by a server that is still loading its data
        words.append(("ROLE",))
        words.append(("CLIENT", "ID"))
        return words

    def accept(self, replies: list[Any]) -> int:
        """The client id; raises StoreUnavailable when the server is not a master."""
        *_, role, client_id = replies
        if not isinstance(role, Exception) and role[0] != b"master":
            if self.sentinels is not None:
                self.sentinels.was_wrong()
            raise StoreUnavailable("the server is a replica: waiting for a master")
        number: int = client_id
        return number
