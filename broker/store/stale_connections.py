"""Stale connections: closed at the store, so that nothing they still carry arrives late.

A worker that loses its connection, or is killed, leaves bytes in the network and in kernel buffers.
Redis may read them seconds after the next connection wrote something newer. Redis runs the commands
of one connection in order, and takes nothing from a connection it has closed. So a writer whose
writes must not be undone first closes its earlier connections with CLIENT KILL. That costs nothing
per write, where a comparison in a script would double the cost of one.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable
from typing import Any

from broker.errors import StoreFault, StoreRefused
from broker.store.pipe import Pipe

logger = logging.getLogger("moldau.store")

RETRY_S = 0.2


class StaleConnections:
    """The earlier connections of one pipe, found by their name `moldau-<worker>-<purpose>`.

    While `are_closed` is false nothing may be written: a late write could overtake it.
    """

    def __init__(self, pipe: Pipe, purpose: str) -> None:
        self._pipe = pipe
        self._line = re.compile(
            rb"id=(\d+) .*\bname=moldau-(\d+)-%b .*\bdb=(\d+) " % purpose.encode()
        )
        self._current = 0  # client id of our connection
        self._lost: set[int] = set()  # client ids of earlier ones not known to be closed
        self._closing: asyncio.Task[None] | None = None
        self.are_closed = True

    async def close_all(self, worker: int, workers: int) -> None:
        """Close what earlier processes of this worker left, before anything is read.

        Also those of workers that no longer exist, if there used to be more of them.
        """
        self._pipe.on_up = self._reconnected
        self._current = self._pipe.client_id
        found = await self._find("TYPE", "NORMAL")
        database = found.get(self._current, (worker, 0))[1]
        await self._kill(
            client
            for client, (number, its_database) in found.items()
            if its_database == database and (number == worker or number >= workers)
        )

    def _reconnected(self) -> None:
        self.are_closed = False
        self._lost.add(self._current)
        self._current = self._pipe.client_id
        if self._closing is not None:
            self._closing.cancel()
        self._closing = asyncio.get_running_loop().create_task(self._close_lost())

    async def _close_lost(self) -> None:
        while self._pipe.is_up:  # else it starts again with the next connection
            try:
                # By name as well: a restarted store counts client ids from 1 again.
                await self._kill(await self._find("ID", *self._lost))
            except StoreFault as fault:
                logger.warning("a lost connection cannot be closed yet: %s", fault)
                await asyncio.sleep(RETRY_S)
            else:
                self._lost.clear()
                self.are_closed = True
                return

    async def _find(self, *which: str | int) -> dict[int, tuple[int, int]]:
        """Connections of this purpose by client id: worker and database."""
        text: bytes = await self._client_command("LIST", *which) or b""
        lines = (self._line.match(line) for line in text.splitlines())
        return {int(line[1]): (int(line[2]), int(line[3])) for line in lines if line}

    async def _kill(self, clients: Iterable[int]) -> None:
        for client in clients:
            if client != self._current:
                await self._client_command("KILL", "ID", client)
                logger.info("closed a stale connection to the store, client id %d", client)

    async def _client_command(self, *words: str | int) -> Any:
        try:
            return await self._pipe.ask("CLIENT", *words)
        except StoreRefused as fault:
            if "NOPERM" not in str(fault):
                raise
            # Late writes are rare: a store that forbids CLIENT is used all the same.
            logger.warning("writes of lost connections may arrive late: %s", fault)
            return None
