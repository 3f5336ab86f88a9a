"""The connections before this one: ended at the store's side, so that nothing they hold comes late.

A worker that loses its connection, or is killed, leaves bytes behind: in the network, in buffers of
the kernel. The store may read them seconds after the next connection wrote something newer. Two
writes of one connection are never exchanged, and a connection that the store has closed brings
nothing more. So whoever writes what must not be undone closes its predecessors first. That costs
nothing per write, where a comparison in a script would double what the store has to do for one.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable
from typing import Any

from broker.errors import StoreFault, StoreRefused
from broker.store.pipe import Pipe, within
from broker.store.streams import CONTROL_TIMEOUT

log = logging.getLogger("moldau.store")

TRY_AGAIN_S = 0.2


class StaleConnections:
    """Of one pipe, by the name `moldau-<worker>-<purpose>` that all of them give themselves.

    While `are_closed` is false nothing should be written: it might be overtaken.
    """

    def __init__(self, pipe: Pipe, purpose: str) -> None:
        self._pipe = pipe
        self._line = re.compile(
            rb"id=(\d+) .*\bname=moldau-(\d+)-%b .*\bdb=(\d+) " % purpose.encode()
        )
        self._current = 0  # id of our connection
        self._lost: set[int] = set()  # ids of those before it that are not known to be closed
        self._closing: asyncio.Task[None] | None = None
        self.are_closed = True

    async def close_all(self, worker: int, workers: int) -> None:
        """Before anything is read: what another process left that did this worker's job.

        Or the job of a worker that does not exist any more, if there were more of them.
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
        while self._pipe.is_up:  # else it is begun anew when it is up again
            try:
                # By name as well: a store that was restarted counts its clients from 1 again.
                await self._kill(await self._find("ID", *self._lost))
            except StoreFault as fault:
                log.warning("a lost connection cannot be closed yet: %s", fault)
                await asyncio.sleep(TRY_AGAIN_S)
            else:
                self._lost.clear()
                self.are_closed = True
                return

    async def _find(self, *which: str | int) -> dict[int, tuple[int, int]]:
        """Connections of this purpose by their ids: whose they are, in which database."""
        text: bytes = await self._ask("LIST", *which) or b""
        lines = (self._line.match(line) for line in text.splitlines())
        return {int(line[1]): (int(line[2]), int(line[3])) for line in lines if line}

    async def _kill(self, clients: Iterable[int]) -> None:
        for client in clients:
            if client != self._current:
                await self._ask("KILL", "ID", client)
                log.info("closed a connection that was left behind, client %d of the store", client)

    async def _ask(self, *words: str | int) -> Any:
        try:
            return await within(CONTROL_TIMEOUT, self._pipe.call("CLIENT", *words))
        except StoreRefused as fault:
            if "NOPERM" not in str(fault):
                raise
            # It was so before, and is rare: a store that forbids it is served all the same.
            log.warning("writes of lost connections may come late: %s", fault)
            return None
