"""The router's side of the workers' unix sockets: who is there, and the connections to them.

Every client connection has connections of its own to the workers it needs, opened when it first
needs them. A worker answers in the order of requests, so one connection for many clients would
let a parked Fetch of one hold back the others; this way only what the client itself sent before
is waited for, exactly as on a direct connection, and back-pressure goes from socket to socket:

    client ──▶ pause reading the client ◀── the worker's socket is full
    client is slow ──▶ pause reading the worker's replies

Correlation ids pass as they are. Replies are cut at frame boundaries only: a large one goes
through in the pieces in which it comes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from broker.wire.advertised import PING
from broker.wire.batch import Buffer
from broker.wire.frame import LENGTH, peer_frame

if TYPE_CHECKING:
    from router.gathered_reply import Gather
    from router.replies import ClientReplies

log = logging.getLogger("moldau.router")

WRITE_HIGH_WATER = 256 * 1024
RETRY_S = 0.02
SIGN_OF_LIFE_S = 30.0


class Workers:
    """Which workers are there: one connection to each is held, and lost with it."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = list(paths)
        self.is_up = [False] * len(self.paths)
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self.paths)

    def failed(self, worker: int) -> None:
        """Somebody could not reach it, and knows before we do."""
        self._set(worker, False)

    def choose(self, preferred: int) -> int | None:
        """This worker, or the next one that is there; None when none is."""
        count = len(self.paths)
        for step in range(count):
            worker = (preferred + step) % count
            if self.is_up[worker]:
                return worker
        return None

    async def until_up(self, patience_s: float) -> None:
        """Wait for all of them; after `patience_s` one is enough."""
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
        """Hold a connection to a worker, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                _, sentinel = await loop.create_unix_connection(Sentinel, self.paths[worker])
            except OSError:
                self._set(worker, False)
                await asyncio.sleep(RETRY_S)
                continue
            self._set(worker, True)
            await sentinel.until_lost()
            # At once: nobody is to be sent to a worker that is not there.
            self._set(worker, False)

    def _set(self, worker: int, is_up: bool) -> None:
        if self.is_up[worker] != is_up:
            self.is_up[worker] = is_up
            log.log(
                logging.INFO if is_up else logging.WARNING,
                "worker %d is %s",
                worker,
                "there" if is_up else "away",
            )
            self._changed.set()


class Sentinel(asyncio.Protocol):
    """A connection that does nothing but end with its worker."""

    def __init__(self) -> None:
        self._lost = asyncio.Event()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost.set()

    async def until_lost(self) -> None:
        while not self._lost.is_set():
            try:
                async with asyncio.timeout(SIGN_OF_LIFE_S):
                    await self._lost.wait()
            except TimeoutError:
                assert self._transport is not None
                # So that the worker does not take it for idle and close it.
                self._transport.write(PING)


class Upstream(asyncio.Protocol):
    """One client connection's connection to one worker."""

    __slots__ = (
        "_collected",
        "_held",
        "_left",
        "_loop",
        "_out",
        "_partial",
        "_reading",
        "_transport",
        "client",
        "expected",
        "is_silent",
        "worker",
    )

    def __init__(self, client: ClientReplies, worker: int, loop: asyncio.AbstractEventLoop) -> None:
        self.client = client
        self.worker = worker
        # What the worker will answer, in order: None is passed on; a Gather takes its own, as the
        # answer of the worker that was meant.
        self.expected: deque[tuple[Gather, int] | None] = deque()
        # Something was sent that has no reply; if it fails, the worker hangs up to say so.
        self.is_silent = False
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._out: list[Buffer] = []  # until it is connected
        self._held = b""  # replies whose turn has not come
        self._partial = b""  # of a reply's length
        self._left = 0  # bytes of the current reply still to come
        self._collected: bytearray | None = None  # the current reply, when a Gather wants it
        self._reading = True

    # --- requests ---

    async def open(self, path: str) -> None:
        try:
            await self._loop.create_unix_connection(lambda: self, path)
        except OSError as fault:
            log.warning("worker %d cannot be reached: %s", self.worker, fault)
            self.client.upstream_failed(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        if self.client.is_closed:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        self._transport.writelines([peer_frame(self.client.peer), *self._out])
        self._out.clear()
        self.client.unblock(self)

    def send(self, data: Buffer) -> None:
        if self._transport is None:
            self._out.append(data)
        else:
            self._transport.write(data)

    def pause_writing(self) -> None:
        self.client.block(self)

    def resume_writing(self) -> None:
        self.client.unblock(self)

    # --- replies ---

    def data_received(self, data: bytes) -> None:
        expected = self.expected
        if (
            expected  # the usual case: one reply, whole, and it is due
            and expected[0] is None
            and self.client.turns[0] is self
            and not (self._left or self._partial or self._held)
            and len(data) >= 4
            and LENGTH.unpack_from(data)[0] == len(data) - 4
        ):
            expected.popleft()
            self.client.pass_on(self, data)
            return
        self._pass(self._held + data if self._held else data)
        self.client.advance()

    def take_turn(self) -> bool:
        """Its reply is the next one: pass on what is held. False: nothing is."""
        data, self._held = self._held, b""
        if not data:
            self.set_reading()
            return False
        self._pass(data)
        self.set_reading()
        return True

    def set_reading(self) -> None:
        """Read, unless what has come cannot go on to the client."""
        wanted = not self._held and not self.client.is_write_paused
        if wanted != self._reading and self._transport is not None:
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _pass(self, data: bytes) -> None:
        """Replies, or pieces of them: to the client if it is their turn, else held."""
        client, expected = self.client, self.expected
        turns = client.turns
        if self._partial:
            data = self._partial + data
            self._partial = b""
        at = start = 0
        have = len(data)
        while at < have:
            if self._left == 0:
                if have - at < 4:
                    self._partial = data[at:]
                    break
                if not expected:
                    log.error("worker %d: a reply nobody asked for", self.worker)
                    client.abort()
                    return
                if expected[0] is not None:
                    client.write(data, start, at)
                    start = at
                    self._collected = bytearray()
                elif turns[0] is not self:
                    self._held = data[at:]
                    self.set_reading()
                    break
                self._left = LENGTH.unpack_from(data, at)[0] + 4
            taken = min(self._left, have - at)
            at += taken
            self._left -= taken
            collected = self._collected
            if collected is not None:
                collected += data[start:at]
                start = at
            if self._left == 0:
                wanted = expected[0]
                if wanted is None:
                    turns.popleft()
                else:
                    assert collected is not None
                    self._collected = None
                    gather, meant = wanted
                    # If it cannot be read, the connection ends, and it is owed as before.
                    gather.deliver(meant, bytes(collected[4:]))
                expected.popleft()
        client.write(data, start, at)

    # --- the end ---

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._held = self._partial = b""
        self.client.upstream_lost(self)
