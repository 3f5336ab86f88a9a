"""Tracks which workers are up, as seen by one router."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

from moldau.broker.private.api import PrivateApi
from moldau.broker.wire.advertised import PING
from moldau.broker.wire.frame import (
    LENGTH,
    LENGTH_SIZE,
    RESPONSE_CORRELATION_ID_AT,
    RESPONSE_CORRELATION_ID_END,
)
from moldau.broker.wire.primitives import INT32

logger = logging.getLogger("moldau.router")

RETRY_S = 0.02
KEEP_ALIVE_S = 30.0

# By private API: called with each answer of a worker.
Subscriptions = dict[PrivateApi[None, Any], Callable[[Any], None]]


class Workers:
    """The workers' unix sockets, and which of them are up. The router holds one connection to each
    worker for as long as it lives."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = list(paths)
        self.is_up = [False] * len(self.paths)
        self.on_lost: Callable[[int], None] | None = None  # called with a worker that has ended
        self.subscriptions: Subscriptions = {}
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self.paths)

    def unreachable(self, worker: int) -> None:
        """A client connection could not connect to it, which may be noticed before the held
        connection ends."""
        self._set(worker, False)

    def choose(self, preferred: int) -> int | None:
        """Return this worker, or the next one that is up; None if none is."""
        count = len(self.paths)
        for step in range(count):
            worker = (preferred + step) % count
            if self.is_up[worker]:
                return worker
        return None

    async def until_up(self, patience_s: float) -> None:
        """Wait for all workers; after `patience_s` one is enough."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience_s
        while not all(self.is_up):
            left = deadline - loop.time()
            if left <= 0 and any(self.is_up):
                return
            self._changed.clear()
            try:
                async with asyncio.timeout(max(left, RETRY_S)):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def watch(self, worker: int) -> None:
        """Hold a connection to a worker, and reconnect whenever it ends."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                _, sentinel = await loop.create_unix_connection(
                    partial(Sentinel, self.subscriptions), self.paths[worker]
                )
            except OSError:
                self._set(worker, False)
                await asyncio.sleep(RETRY_S)
                continue
            # Connecting proves nothing: the socket stays open while the worker is restarted.
            if await sentinel.has_answered():
                self._set(worker, True)
                await sentinel.until_lost()
                # This precedes the next attempt to connect: no request may go to a worker that is
                # down.
                self._set(worker, False)
                if self.on_lost is not None:
                    self.on_lost(worker)
            else:
                await asyncio.sleep(RETRY_S)

    def _set(self, worker: int, is_up: bool) -> None:
        if self.is_up[worker] != is_up:
            self.is_up[worker] = is_up
            level = logging.INFO if is_up else logging.WARNING
            logger.log(level, "worker %d is %s", worker, "up" if is_up else "down")
            self._changed.set()


class Sentinel(asyncio.Protocol):
    """A connection that ends when its worker does, and that receives subscribed notifications."""

    def __init__(self, subscriptions: Subscriptions) -> None:
        self._subscriptions = subscriptions
        self._by_key = {api.key: api for api in subscriptions}
        self._received = bytearray()
        self._lost = asyncio.Event()
        self._answered = asyncio.Event()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        # The ping comes last: when a worker counts as up, its first notifications have been
        # received.
        for api in self._subscriptions:
            self._transport.write(api.request(None))
        self._transport.write(PING)

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        while len(received) >= LENGTH_SIZE:
            end = LENGTH_SIZE + max(LENGTH.unpack_from(received)[0], 0)
            if len(received) < end:
                return
            (key,) = INT32.unpack_from(received, RESPONSE_CORRELATION_ID_AT)
            api = self._by_key.get(key)
            if api is not None:
                news = api.read_answer(received[RESPONSE_CORRELATION_ID_END:end])
                self._subscriptions[api](news)
            else:
                self._answered.set()
            del received[:end]

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost.set()
        self._answered.set()

    async def has_answered(self) -> bool:
        """Wait for the first reply. Returns False if the connection ends instead."""
        await self._answered.wait()
        return not self._lost.is_set()

    async def until_lost(self) -> None:
        while not self._lost.is_set():
            try:
                async with asyncio.timeout(KEEP_ALIVE_S):
                    await self._lost.wait()
            except TimeoutError:
                assert self._transport is not None
                self._transport.write(PING)  # otherwise the worker closes the connection as idle
