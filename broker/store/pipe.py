"""One pipelined connection to Redis: one write per turn of the event loop, replies to callbacks.

redis-py's asyncio client costs about 40 us of CPU per command; this costs 2 to 3. A command is sent
as bytes ready for the wire; its callback gets the reply or a StoreFault. When the
connection is lost, every pending callback gets StoreUnavailable and the pipe reconnects by itself
with back-off; commands sent in the meantime fail at once with StoreDown. A server that turns out to
be no master, or to be one no longer, counts as lost as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import Any, cast

import hiredis

from moldau.broker.errors import (
    StoreDemoted,
    StoreDown,
    StoreFault,
    StoreFull,
    StoreRefused,
    StoreTimeout,
    StoreUnavailable,
)
from moldau.broker.metrics.histogram import DurationHistogram
from moldau.broker.metrics.loop_clock import loop_clock
from moldau.broker.store.connector import Connector
from moldau.broker.store.server_facts import SECTIONS
from moldau.broker.store.store_id import StoreIdentity
from moldau.broker.store.store_url import Address
from moldau.broker.wire.batch import Buffer
from moldau.broker.wire.framing import coalesce

logger = logging.getLogger("moldau.store")

Done = Callable[[Any], None]

REPLY_TIMEOUT = 15.0  # seconds, for commands off the hot path
FIRST_RETRY, LAST_RETRY = 0.05, 0.2  # a store that is back is used again soon
UNREACHABLE_LOG_EVERY_S = 1.0
HANDSHAKE_TIMEOUT = 10.0
WRITE_AT_ONCE = 1 << 16  # bytes: more is written before the end of the turn
RECEIVE_AT_ONCE = 1 << 18


# Error replies of a server that was a master: it is a replica now, or loads the data of its new
# master. A blocked command ends with UNBLOCKED when that happens.
_NOT_A_MASTER = ("READONLY", "MASTERDOWN", "LOADING", "UNBLOCKED force")
# Error replies of a server that is out of memory, or cannot write its file (MISCONF: mostly because
# its disk is full).
_FULL = ("OOM", "MISCONF")
DRAIN_SECONDS = 1.0


def reply_error(text: str) -> StoreFault:
    """The fault for an error reply, `-ERR ...`."""
    if text.startswith(_FULL):
        return StoreFull(text)
    return StoreDemoted(text) if text.startswith(_NOT_A_MASTER) else StoreRefused(text)


def command(*words: bytes | str | int | float) -> bytes:
    """Encode a command."""
    packed: bytes = hiredis.pack_command(words)  # type: ignore[arg-type]  # any number of words
    return packed


def pairs(reply: list[Any]) -> dict[Any, Any]:
    """A flat reply of names and values (HGETALL, XINFO) as a dict."""
    return dict(zip(reply[::2], reply[1::2], strict=True))


def bulk(value: bytes) -> bytes:
    """Encode one word of a command."""
    return b"$%d\r\n%b\r\n" % (len(value), value)


# One buffer for all pipes of a process: what it holds is copied before the next one is read into.
_received = memoryview(bytearray(RECEIVE_AT_ONCE))


class Pipe(asyncio.BufferedProtocol):
    """One connection. After `stall_after` seconds without a reply it counts as lost."""

    def __init__(
        self,
        connector: Connector,
        name: str,
        *,
        stall_after: float | None = 20.0,
        identity: StoreIdentity | None = None,
    ) -> None:
        self._connector = connector
        self._identity = identity
        self.store_id = b""  # as the present connection has read it
        if identity is not None:
            identity.add(self)
        self._name = name
        self._stall_after = stall_after
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.WriteTransport | None = None
        self._waiting: deque[Done] = deque()
        self._out: list[Buffer] = []
        self._out_size = 0
        self._flush_scheduled = False
        self._reader = hiredis.Reader(replyError=self._reply_error)
        self._up = asyncio.Event()
        self._is_up = False  # the same as `_up`, without a call: for the hot path
        self._is_draining = False  # the server is no master: no more commands, only replies
        self._closed = False
        self._connecting: asyncio.Task[None] | None = None
        self._last_progress = 0.0
        self._watchdog: asyncio.TimerHandle | None = None
        self.round_trips = (
            DurationHistogram()
        )  # of commands that were sent while none was under way
        self._asked_ns = 0
        self.reconnects = 0
        self.client_id = 0
        self.server: Address | None = None  # None: not connected, or over a unix socket
        self.on_up: Callable[[], None] | None = None

    # --- connecting ---

    async def connect(self) -> None:
        """Connect, or raise StoreUnavailable. A connection lost later is reopened by itself."""
        await self._connect()

    def close(self) -> None:
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._watchdog is not None:
            self._watchdog.cancel()
        if self._transport is not None:
            self._flush()
            self._transport.close()

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port of the server; None over a unix socket."""
        peer = self._transport.get_extra_info("peername") if self._transport is not None else None
        return (peer[0], peer[1]) if isinstance(peer, tuple) else None

    @property
    def is_up(self) -> bool:
        return self._is_up

    async def wait_up(self) -> None:
        await self._up.wait()

    async def _connect(self) -> None:
        self._reader = hiredis.Reader(replyError=self._reply_error)
        try:
            server = await self._connector.open(self._loop, lambda: self)
        except (OSError, TimeoutError, StoreUnavailable) as fault:
            self._abort()
            text = str(fault) or "the connection timed out"
            raise StoreUnavailable(f"{self._connector.label}: {text}") from None
        if self._transport is None:
            raise StoreUnavailable(f"{self._connector.label}: closed as soon as it was open")
        try:
            self.client_id, info = await self._handshake()
            if self._identity is not None:
                self._identity.admit(self, info)
        except (TimeoutError, StoreFault) as fault:
            self._abort()
            raise StoreUnavailable(f"{self._connector.label}: {fault}") from None
        if self._transport is None:  # lost between the last reply and now
            raise StoreUnavailable(f"{self._connector.label}: closed after the handshake")
        self.server = server
        self._is_up = True
        self._up.set()
        if self.on_up is not None:
            self.on_up()

    async def _handshake(self) -> tuple[int, bytes]:
        """Returns the connection's client id, and INFO if there is a store id to read.

        Until then the pipe is not up and sends nothing else: a command before AUTH would be
        refused, one before SELECT would go to another database.
        """
        commands: list[tuple[str | int, ...]] = list(self._connector.handshake(self._name))
        if self._identity is not None:
            commands.append(("INFO", *SECTIONS))
        replies = [self._ask_early(*words) for words in commands]
        # Not wait_for: when cancelled, it leaves an exception that the event loop reports.
        async with asyncio.timeout(HANDSHAKE_TIMEOUT):
            found = await asyncio.gather(*replies, return_exceptions=True)
        for words, reply in zip(commands, found, strict=True):
            # Only administrators may call ROLE; INFO has the role too.
            is_role_refused = words == ("ROLE",) and "NOPERM" in str(reply)
            if isinstance(reply, BaseException) and not (is_role_refused and self._identity):
                raise reply  # the first is the cause; later ones only follow from it
        info = cast("bytes", found.pop()) if self._identity is not None else b""
        return self._connector.accept(found), info

    def _ask_early(self, *words: bytes | str | int | float) -> asyncio.Future[Any]:
        """Send a command of the handshake, before the pipe is up."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._enqueue((command(*words),), lambda reply: resolve(future, reply))
        return future

    def _reply_error(self, text: str) -> StoreFault:
        """Make the fault for an error reply; hiredis calls this."""
        fault = reply_error(text)
        if isinstance(fault, StoreDemoted) and self._is_up:
            self._drain(text)
        return fault

    def _drain(self, reason: str) -> None:
        """Reconnect once everything that was sent is answered: then its outcome is known."""
        logger.warning("store connection %s is not at a master: %s", self._name, reason)
        self._is_draining = True
        self._is_up = False
        self._up.clear()
        self._loop.call_later(DRAIN_SECONDS, self._drained, self._transport)

    def _drained(self, transport: asyncio.WriteTransport | None) -> None:
        if self._transport is transport:  # else it is another connection already
            self._abort()

    def drop(self, reason: str) -> None:
        """Give up the connection: commands under way fail, and the pipe reconnects."""
        if self._transport is not None:
            logger.warning("store connection %s dropped: %s", self._name, reason)
            self._abort()

    async def _reconnect(self) -> None:
        delay, log_at = FIRST_RETRY, 0.0
        while not self._closed:
            try:
                await self._connect()
            except StoreUnavailable as fault:
                if self._loop.time() >= log_at:
                    logger.warning("store unreachable, trying again: %s", fault)
                    log_at = self._loop.time() + UNREACHABLE_LOG_EVERY_S
                await asyncio.sleep(delay)
                delay = min(delay * 2, LAST_RETRY)
            else:
                logger.info("store connection %s is back", self._name)
                self.reconnects += 1
                return

    # --- commands ---

    def send(self, parts: Sequence[Buffer], done: Done, size: int = 0) -> None:
        """Send one encoded command; `done` gets its reply or a StoreFault, in order of sending.

        Pass the size of a large one: it is then written at once, so that Redis can start on it.
        """
        if not self._is_up:
            fault = StoreDown(f"{self._connector.label}: not connected")
            self._loop.call_soon(done, fault)
            return
        self._enqueue(parts, done)
        if size:
            self._out_size += size
            if self._out_size >= WRITE_AT_ONCE:
                self._flush()

    def _enqueue(self, parts: Sequence[Buffer], done: Done) -> None:
        self._out.extend(parts)
        if not self._waiting:
            self._last_progress = self._loop.time()
            self._asked_ns = loop_clock.now_ns
            self._watch()
        self._waiting.append(done)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def call(self, *words: bytes | str | int | float) -> asyncio.Future[Any]:
        """Send a command given as words; for everything off the hot path."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self.send((command(*words),), lambda reply: resolve(future, reply))
        return future

    async def ask(self, *words: bytes | str | int | float, within_s: float = REPLY_TIMEOUT) -> Any:
        """Send a command and wait for its reply. Raises StoreFault, also after `within_s`."""
        return await within(within_s, self.call(*words))

    def _flush(self) -> None:
        self._flush_scheduled = False
        self._out_size = 0
        out, self._out = self._out, []
        if not out or self._transport is None:
            return
        parts = coalesce(out)
        if len(parts) == 1:
            self._transport.write(parts[0])
        else:
            self._transport.writelines(parts)

    # --- asyncio.BufferedProtocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast("asyncio.WriteTransport", transport)
        # uvloop writes what exceeds this at once, the rest at the end of the turn.
        self._transport.set_write_buffer_limits(high=WRITE_AT_ONCE - 1)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _received

    def buffer_updated(self, nbytes: int) -> None:
        reader = self._reader
        reader.feed(_received, 0, nbytes)  # type: ignore[arg-type]  # it takes any buffer
        waiting = self._waiting
        self._last_progress = self._loop.time()
        loop_clock.now_ns = now = monotonic_ns()
        if self._asked_ns:
            self.round_trips.counts[(now - self._asked_ns).bit_length()] += 1
            self._asked_ns = 0
        while True:
            try:
                reply = reader.gets()
            except hiredis.ProtocolError as fault:
                logger.error("store connection %s: %s", self._name, fault)  # noqa: TRY400
                self._abort()
                return
            if reply is False:
                break
            if not waiting:
                logger.error("store connection %s: a reply to no command", self._name)
                self._abort()
                return
            self._deliver(waiting.popleft(), reply)
        if self._is_draining and not waiting:
            self._abort()

    def _deliver(self, done: Done, reply: Any) -> None:
        try:
            done(reply)
        except Exception:
            # A defect in one callback must not cost the others their replies.
            logger.exception("store connection %s: a callback failed", self._name)

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        was_up = self._is_up or self._is_draining
        self._transport = None
        self.store_id = b""
        self.server = None
        self._is_up = self._is_draining = False
        self._up.clear()
        self._out.clear()
        waiting, self._waiting = self._waiting, deque()
        if was_up and not self._closed:
            logger.warning("store connection %s lost: %s", self._name, exc or "closed by the store")
        fault = StoreUnavailable(f"{self._connector.label}: {exc or 'connection closed'}")
        for done in waiting:
            self._deliver(done, fault)
        if was_up and not self._closed:
            self._connecting = self._loop.create_task(self._reconnect())

    # --- stall detection ---

    def _watch(self) -> None:
        if self._stall_after is not None and self._watchdog is None:
            self._watchdog = self._loop.call_later(self._stall_after, self._check_stall)

    def _check_stall(self) -> None:
        self._watchdog = None
        if not self._waiting or self._stall_after is None:
            return
        left = self._last_progress + self._stall_after - self._loop.time()
        if left > 0.001:
            self._watchdog = self._loop.call_later(left, self._check_stall)
        else:
            logger.error("store connection %s: no reply for %.0f s", self._name, self._stall_after)
            self._abort()


def resolve(future: asyncio.Future[Any], reply: Any) -> None:
    """Give a future a reply, or raise a StoreFault in it; ignored if it was cancelled."""
    if future.done():
        return
    if isinstance(reply, Exception):
        future.set_exception(reply)
    else:
        future.set_result(reply)


async def within(seconds: float, future: asyncio.Future[Any]) -> Any:
    """Wait for a reply, or raise StoreTimeout. asyncio.wait_for costs ten times as much."""
    timer = future.get_loop().call_later(seconds, _give_up, future, seconds)
    try:
        return await future
    finally:
        timer.cancel()


def _give_up(future: asyncio.Future[Any], seconds: float) -> None:
    if not future.done():
        future.set_exception(StoreTimeout(f"the store did not reply within {seconds:g} s"))
