"""One broker per Redis database: two would each believe that they own every group.

An embedded store is locked by its data directory. An external one is claimed with a key that names
the broker and expires unless it is renewed, so that a crash does not keep the next one out for
long. On the same host a holder that is gone is recognised at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time

import msgspec

from moldau.broker.errors import StoreFault
from moldau.broker.process import BootFailure
from moldau.broker.store.blocking import BlockingStore
from moldau.ops.serve.runtime import process_exists

logger = logging.getLogger("moldau.supervisor")

EXPIRES_MS = 6_000
RENEW_EVERY_S = 2.0
RETRY_EVERY_S = 0.25


class Holder(msgspec.Struct, frozen=True):
    """The broker that serves a database."""

    host: str
    pid: int
    port: int
    since: float

    @property
    def is_gone(self) -> bool:
        """True only if it is certain: nothing is known of another host's processes."""
        return self.host == socket.gethostname() and not process_exists(self.pid)


class Claim:
    """Take it before anything is started, keep it while serving, release it at the end."""

    def __init__(self, url: str, port: int) -> None:
        self._store = BlockingStore(url)
        self._own = msgspec.json.encode(
            Holder(socket.gethostname(), os.getpid(), port, time.time())
        )

    def take(self) -> None:
        """Raises BootFailure when another broker keeps it."""
        deadline = time.monotonic() + EXPIRES_MS / 1000 + 1
        has_warned = False
        while (other := self._renew()) is not None:
            holder = _decode(other)
            if holder.is_gone:
                self._store.release_claim(other)
                continue
            if time.monotonic() > deadline:
                raise BootFailure(
                    f"this Redis database is served already, by process {holder.pid} on "
                    f"{holder.host}, port {holder.port}: stop that one, or use a database of "
                    "your own (redis://host:port/1)"
                )
            if not has_warned:
                has_warned = True
                logger.warning("waiting: process %d on %s may be gone", holder.pid, holder.host)
            time.sleep(RETRY_EVERY_S)

    def _renew(self) -> bytes | None:
        """The other broker that holds the claim, if one does."""
        return self._store.renew_claim(self._own, EXPIRES_MS)

    async def keep(self) -> None:
        """Renew until cancelled. While the store is down no other broker can claim it either."""
        while True:
            await asyncio.sleep(RENEW_EVERY_S)
            try:
                other = await asyncio.to_thread(self._renew)
                holder = None if other is None else _decode(other)
            except StoreFault:
                continue
            except msgspec.DecodeError as fault:
                logger.error("the claim in the store is not Moldau's: %s", fault)  # noqa: TRY400
                continue
            if holder is not None:
                logger.critical(
                    "THIS REDIS DATABASE IS SERVED BY ANOTHER BROKER TOO: process %d on %s, "
                    "port %d; groups are split between them: stop one",
                    holder.pid,
                    holder.host,
                    holder.port,
                )

    def release(self) -> None:
        try:
            self._store.release_claim(self._own)
        except StoreFault as fault:
            logger.warning("the claim on the store could not be released: %s", fault)
        finally:
            self._store.close()


def _decode(holder: bytes) -> Holder:
    return msgspec.json.decode(holder, type=Holder)
