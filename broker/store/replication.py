"""Waits until every replica that is online has what was written: no failover loses that.

One WAIT at a time serves all logs of a worker: whoever comes while it is under way shares the next.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from moldau.broker.errors import StoreFault, StoreTimeout, StoreUnavailable
from moldau.broker.store import keys
from moldau.broker.store.pipe import Pipe, command
from moldau.broker.store.store_id import StoreIdentity

logger = logging.getLogger("moldau.store")

WAIT_MS = 1000  # then look whether the replica is still online

# Called with how many replicas have what was written before; NEVER: the store has changed.
Replicated = Callable[[int], None]
NEVER = -1


class Replication:
    """`pipe`: WAIT blocks its connection, so nothing else should wait behind it."""

    def __init__(self, identity: StoreIdentity, pipe: Pipe) -> None:
        self._identity = identity
        # How many are online: with none there is nothing to wait for. An attribute, as every append
        # looks at it.
        self.replicas = identity.replicas
        identity.on_replicas = self._counted
        self._pipe = pipe
        self._waiting: list[Replicated] = []  # for the next WAIT
        self._under_way: list[Replicated] = []
        self._again: asyncio.Task[None] | None = None

    def _counted(self, replicas: int) -> None:
        self.replicas = replicas

    @property
    def kept_all(self) -> bool:
        """Did replicas have what was acknowledged when the store last changed?"""
        return self._identity.was_replicated

    def when_replicated(self, done: Replicated) -> None:
        """Call `done` once every replica that is online has everything written so far."""
        self._waiting.append(done)
        if not self._under_way and self._again is None:
            self._wait()

    def within(self, seconds: float, done: Callable[[StoreFault | None], None]) -> None:
        """Call `done` likewise, or with a fault after `seconds`; without replicas at once."""
        if not self.replicas:
            done(None)
            return
        is_done = False

        def finish(outcome: int | StoreFault) -> None:
            nonlocal is_done
            if is_done:
                return
            is_done = True
            timer.cancel()
            if outcome == NEVER:
                outcome = StoreUnavailable("the store changed before its replicas had it")
            done(outcome if isinstance(outcome, StoreFault) else None)

        late = StoreTimeout(f"the store's replicas do not have it after {seconds:g} s")
        timer = asyncio.get_running_loop().call_later(seconds, finish, late)
        self.when_replicated(finish)

    def _wait(self) -> None:
        self._under_way, self._waiting = self._waiting, []
        wanted = self._identity.replicas
        # WAIT covers what its own connection wrote last, so write something first.
        self._pipe.send((command("SET", keys.BARRIER, 1),), _ignore)
        wait = command("WAIT", wanted, WAIT_MS)
        self._pipe.send((wait,), lambda reply: self._waited(wanted, reply))

    def _waited(self, wanted: int, reply: Any) -> None:
        if isinstance(reply, int) and reply >= wanted:
            done, self._under_way = self._under_way, []
            if self._waiting:
                self._wait()
            for each in done:
                each(reply)
        else:
            self._again = asyncio.get_running_loop().create_task(self._try_again(reply))

    async def _try_again(self, reply: Any) -> None:
        """A replica or the connection hangs or is lost: count the replicas and wait again."""
        if isinstance(reply, StoreFault):
            await self._pipe.wait_up()
        else:
            logger.warning("the store has %d replicas online, %d answer", self.replicas, reply)
        await self._identity.refresh(self._pipe)
        self._again = None
        self._waiting = self._under_way + self._waiting
        self._under_way = []
        if self._waiting:
            self._wait()

    def store_changed(self) -> None:
        """What was written may be lost: nobody can tell any more whether it was replicated."""
        waiting = self._under_way + self._waiting
        self._under_way, self._waiting = [], []
        for each in waiting:
            each(NEVER)


def _ignore(reply: Any) -> None:
    """Ignore the reply to SET: the reply to WAIT is enough."""
