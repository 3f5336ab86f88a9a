"""Asks the sentinels which server is the master: at each connect, and while connected.

A sentinel that does not answer, or names a server that is no master, moves to the end of the order.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import hiredis

from moldau.broker.errors import StoreFault, StoreRefused, StoreUnavailable
from moldau.broker.store.store_url import Address, StoreUrl

logger = logging.getLogger("moldau.store")

SENTINEL_TIMEOUT = 1.0
# Sentinel demotes the old master of a planned failover only after 8 s: until then it takes writes.
FOLLOW_EVERY = 0.5


class Sentinels:
    def __init__(self, url: StoreUrl, tls: ssl.SSLContext | None) -> None:
        self._url = url
        self._tls = tls
        self._order = list(url.sentinels)

    async def master(self) -> Address:
        """The address of the master, from the first sentinel that knows it. Raises
        StoreUnavailable."""
        reasons = []
        for address in tuple(self._order):
            try:
                return await self._ask(address)
            except (OSError, TimeoutError, StoreFault) as fault:
                reasons.append(f"{address[0]}:{address[1]}: {fault or type(fault).__name__}")
                self._later(address)
        text = self._url.without_secrets("; ".join(reasons))
        raise StoreUnavailable(f"no sentinel names a master {self._url.master_name}: {text}")

    def was_wrong(self) -> None:
        """The server that was named last is no master: ask another one first."""
        self._later(self._order[0])

    def _later(self, address: Address) -> None:
        self._order.remove(address)
        self._order.append(address)

    async def _ask(self, sentinel: Address) -> Address:
        auth = self._url.sentinel_credentials.words
        name = self._url.master_name
        question = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name)
        *logged_in, reply = await exchange(sentinel, self._tls, [auth, question])
        if isinstance(reply, StoreFault):
            # A failed AUTH is the reason. It may also fail harmlessly: a sentinel may have no
            # password.
            raise next((fault for fault in logged_in if isinstance(fault, StoreFault)), reply)
        if reply is None:
            raise StoreRefused(f"it knows no master {name}")
        host, port = reply
        return host.decode(), int(port)

    async def is_master(self, server: Address) -> bool:
        """Does that server itself say that it is a master?"""
        words = [self._url.credentials.words, ("ROLE",)]
        try:
            role = (await exchange(server, self._tls, words))[-1]
        except (OSError, TimeoutError, StoreFault):
            return False
        return isinstance(role, list) and role[0] == b"master"


async def exchange(
    address: Address, tls: ssl.SSLContext | None, commands: Iterable[tuple[str, ...]]
) -> list[Any]:
    """Send a few commands on a new connection; returns the replies. Empty commands are skipped."""
    words = [one for one in commands if one]
    replies: list[Any] = []
    parser = hiredis.Reader(replyError=StoreRefused)
    async with asyncio.timeout(SENTINEL_TIMEOUT):
        reader, writer = await asyncio.open_connection(*address, ssl=tls)
        try:
            # It takes any number of words.
            writer.write(b"".join(hiredis.pack_command(one) for one in words))  # type: ignore[arg-type]
            while len(replies) < len(words):
                data = await reader.read(1 << 16)
                if not data:
                    raise StoreUnavailable("closed the connection")
                parser.feed(data)
                while (reply := parser.gets()) is not False:
                    replies.append(reply)
        except hiredis.ProtocolError as fault:
            raise StoreUnavailable(str(fault)) from None
        finally:
            writer.close()
    return replies


class Follows(Protocol):
    """A connection that can be given up."""

    server: Address | None

    def drop(self, reason: str) -> None: ...


async def follow(sentinels: Sentinels, connections: Callable[[], Iterable[Follows]]) -> None:
    """Give up connections to a former master, until cancelled.

    A demoted server says so itself. A server whose machine lost power or network says nothing, and
    the stall detection of a pipe is slow.
    """
    while True:
        await asyncio.sleep(FOLLOW_EVERY)
        try:
            master = await sentinels.master()
        except StoreUnavailable as fault:
            logger.warning("%s", fault)
            continue
        former = [one for one in connections() if one.server not in (None, master)]
        # A sentinel that was cut off may name a master of the past.
        if former and await sentinels.is_master(master):
            for one in former:
                one.drop(f"the master is {master[0]}:{master[1]} now")
