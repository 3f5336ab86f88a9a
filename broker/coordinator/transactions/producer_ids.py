"""Unused producer ids, taken from the store a block at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from moldau.broker.errors import StoreFault
from moldau.broker.txn.record import NO_PRODUCER_ID

logger = logging.getLogger("moldau.coordinator")

BLOCK = 1000
LOW = 100  # the next block is taken in advance: `take` cannot wait


class ProducerIds:
    """`take_block` reserves so many ids in the store and returns the first."""

    def __init__(self, take_block: Callable[[int], Awaitable[int]]) -> None:
        self._take_block = take_block
        self._blocks: list[range] = []
        self._taking: asyncio.Task[None] | None = None

    def take(self) -> int:
        """`NO_PRODUCER_ID` if none is left: more are on their way."""
        if sum(map(len, self._blocks)) <= LOW:
            self._take_more()
        if not self._blocks:
            return NO_PRODUCER_ID
        block = self._blocks.pop(0)
        if len(block) > 1:
            self._blocks.insert(0, block[1:])
        return block[0]

    @property
    def is_at_hand(self) -> bool:
        return bool(self._blocks)

    async def next(self) -> int:
        """Waits for the store if none is left. Raises StoreFault."""
        await self.ensure()
        return self.take()

    async def ensure(self) -> None:
        """Wait until `take` has one. Raises StoreFault."""
        while not self._blocks:
            await asyncio.shield(self._take_more())

    def _take_more(self) -> asyncio.Task[None]:
        if self._taking is None:
            self._taking = asyncio.get_running_loop().create_task(self._take_next_block())
            self._taking.add_done_callback(self._taken)
        return self._taking

    async def _take_next_block(self) -> None:
        first = await self._take_block(BLOCK)
        self._blocks.append(range(first, first + BLOCK))

    def _taken(self, task: asyncio.Task[None]) -> None:
        self._taking = None
        if not task.cancelled() and isinstance(fault := task.exception(), StoreFault):
            logger.warning("producer ids: waiting for the store: %s", fault)

    def close(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
