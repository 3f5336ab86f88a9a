"""Connections to the other workers, over the unix sockets that routers use, in Kafka's messages.

A link carries one kind of request, one at a time; its user gathers the next one meanwhile. The
outcome of a request that is not answered within 2 s is unknown. From then on the worker counts as
down, and requests fail at once until it answers a ping again. Connecting proves nothing: the
supervisor keeps the socket open while a worker is restarted, and the kernel accepts for one that is
stopped.

    unknown ── first request ──▶ connecting ── answered ──▶ up ── lost, or no answer ──▶ down
                                                            ▲                             │
                                                            └────── a ping is answered ───┘
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast

from moldau.broker.errors import ErrorCode
from moldau.broker.private.table import PREAMBLE
from moldau.broker.security.identity import worker_identity
from moldau.broker.txn.record import TxnPartition
from moldau.broker.wire.advertised import PING
from moldau.broker.wire.apis import APIS, Api, ApiKey
from moldau.broker.wire.frame import LENGTH, LENGTH_SIZE, read_response, request_frame
from moldau.broker.wire.primitives import MalformedMessage
from moldau.broker.wire.schema import Message

logger = logging.getLogger("moldau.coordinator")

ANSWER_WITHIN_S = 2.0
FIRST_RETRY_S, LAST_RETRY_S = 0.05, 1.0
LOG_EVERY_S = 30.0  # a worker that is restarted again and again is reported elsewhere
LARGEST_ANSWER = 100 << 20
CLIENT_ID = "moldau"

K = TypeVar("K")
V = TypeVar("V")

# Called with the response. None: there is none, and the outcome of the request is unknown.
Answered = Callable[[Message | None], None]


class Links(Protocol):
    """The links to other workers, as those who ask them see them."""

    def link(self, worker: int, api: ApiKey, version: int) -> Link: ...


class Link:
    """A link to one worker, for one kind of request."""

    def __init__(self, path: str, own: int, worker: int, api: Api, version: int) -> None:
        self._path = path
        self._greeting = PREAMBLE.request(worker_identity(own)) + PING
        self.worker = worker
        self._api = api
        self._version = version
        self._loop = asyncio.get_running_loop()
        self._connection: _Connection | None = None
        self._opening: asyncio.Task[None] | None = None
        self._frame = b""  # of a request that waits for the connection
        self._answered: Answered | None = None  # of the request under way
        self._number = 0  # of that request
        self._expiry: asyncio.TimerHandle | None = None
        self._is_down = False
        self._is_closed = False
        self._is_reported = False  # that it is down
        self._log_at = 0.0

    @property
    def is_busy(self) -> bool:
        """A request is under way: no other may be sent."""
        return self._answered is not None

    @property
    def is_down(self) -> bool:
        return self._is_down

    def send(self, message: Message, answered: Answered) -> None:
        """Call `answered`, later, with the response or None."""
        assert not self.is_busy, "one request at a time"
        if self._is_down or self._is_closed:
            self._loop.call_soon(answered, None)
            return
        self._answered = answered
        self._number = self._number % 0x7FFF_FFFF + 1  # 0 is the ping's
        self._expiry = self._loop.call_later(ANSWER_WITHIN_S, self._expired)
        frame = request_frame(self._api, self._version, self._number, CLIENT_ID, message)
        if self._connection is not None:
            self._connection.write(frame)
            return
        self._frame = frame
        if self._opening is None:
            self._opening = self._loop.create_task(self._open())

    def close(self) -> None:
        self._is_closed = True
        self._failed("this worker stops")

    # --- connections ---

    async def _open(self) -> None:
        """Connect until the worker answers."""
        delay = FIRST_RETRY_S
        while not self._is_closed:
            try:
                _, made = await self._loop.create_unix_connection(self._new, self._path)
            except OSError as fault:
                self._failed(str(fault))
            else:
                if await made.up and made is self._connection:
                    break
            await asyncio.sleep(delay)
            delay = min(2 * delay, LAST_RETRY_S)
        self._opening = None

    def _new(self) -> _Connection:
        return _Connection(self)

    def connected(self, connection: _Connection) -> None:
        frame, self._frame = self._frame, b""
        self._connection = connection
        connection.write(self._greeting + frame)

    def ping_answered(self, connection: _Connection) -> None:
        """The ping of a connection."""
        if self._is_down and connection is self._connection:
            self._is_down = False
            if self._is_reported:
                self._is_reported = False
                logger.info("worker %d answers %s again", self.worker, self._api.name)

    def received(self, connection: _Connection, frame: bytearray) -> None:
        if connection is not self._connection or self._answered is None:
            return  # it answers a request that was given up
        try:
            number, message = read_response(self._api, self._version, frame)
        except MalformedMessage as fault:
            self._failed(f"a malformed answer: {fault}")
            return
        if number != self._number:
            self._failed(f"an answer to request {number} in place of {self._number}")
            return
        self._end(message)

    def lost(self, connection: _Connection, reason: str) -> None:
        if connection is self._connection:
            self._failed(reason)

    # --- failing ---

    def _expired(self) -> None:
        self._failed(f"no answer within {ANSWER_WITHIN_S:g} s")

    def _failed(self, reason: str) -> None:
        """Give up the connection and the request that is under way; look when it is back."""
        connection, self._connection = self._connection, None
        self._frame = b""
        if connection is not None:
            connection.abort()
        if self._is_closed:
            if self._opening is not None:
                self._opening.cancel()
        else:
            self._set_down(reason)
            if self._opening is None:
                self._opening = self._loop.create_task(self._open())
        if self._answered is not None:
            self._end(None)

    def _set_down(self, reason: str) -> None:
        now = self._loop.time()
        # A connection that is not used may end: it was idle for long, or the worker is restarted.
        if self.is_busy and not self._is_down and now >= self._log_at:
            self._log_at = now + LOG_EVERY_S
            self._is_reported = True
            logger.warning("worker %d: no %s: %s", self.worker, self._api.name, reason)
        self._is_down = True

    def _end(self, message: Message | None) -> None:
        answered, self._answered = self._answered, None
        if self._expiry is not None:
            self._expiry.cancel()
        if answered is not None:
            answered(message)


def error_code(number: int) -> ErrorCode:
    """The error code of an answer. A worker of another version may send codes unknown here."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


class Outbox(ABC, Generic[K, V]):
    """Gathers requests for one worker, by key: those of one turn of the event loop, and those that
    come while another is under way."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._gathered: dict[K, list[V]] = {}
        self._is_scheduled = False

    def add(self, key: K, value: V) -> None:
        self._gathered.setdefault(key, []).append(value)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._turn_ends)

    def _turn_ends(self) -> None:
        self._is_scheduled = False
        self._flush()

    @abstractmethod
    def _flush(self) -> None:
        """Send all that has gathered, unless a request is under way: its answer calls this
        again."""

    def _take(self, most: int) -> dict[K, list[V]]:
        """Take at most so many values."""
        taken: dict[K, list[V]] = {}
        while self._gathered and most > 0:
            key, values = next(iter(self._gathered.items()))
            taken[key] = values[:most]
            del values[:most]
            if not values:
                del self._gathered[key]
            most -= len(taken[key])
        return taken


class StoreView(Protocol):
    """The store as this worker sees it now; others may notice a change earlier or later."""

    store_id: bytes


class PlacesOfTopic(NamedTuple):
    name: str
    topic_id: bytes
    partitions: list[int]


def by_topic(places: Iterable[TxnPartition]) -> list[PlacesOfTopic]:
    """Group sorted places by topic."""
    topics: list[PlacesOfTopic] = []
    for name, topic_id, partition in places:
        if not topics or topics[-1][:2] != (name, topic_id):
            topics.append(PlacesOfTopic(name, topic_id, []))
        topics[-1].partitions.append(partition)
    return topics


def is_answer_to(
    asked: Iterable[Iterable[TxnPartition]], answered: Iterable[Iterable[tuple[Any, ...]]]
) -> bool:
    """True if the rows of an answer, which begin with topic and partition, are about these places,
    in their order."""
    wanted = [[(place.topic, place.partition) for place in places] for places in asked]
    return [[row[:2] for row in rows] for rows in answered] == wanted


class _Connection(asyncio.Protocol):
    """One connection of a link. The first answer on it is the ping's."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._transport: asyncio.Transport | None = None
        self._data = bytearray()
        # True once the ping is answered, False if the connection ends before.
        self.up: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._link.connected(self)

    def write(self, frame: bytes) -> None:
        if self._transport is not None:
            self._transport.write(frame)

    def data_received(self, data: bytes) -> None:
        buffer = self._data
        buffer += data
        while len(buffer) >= LENGTH_SIZE:
            (size,) = LENGTH.unpack_from(buffer)
            if not 0 <= size <= LARGEST_ANSWER:
                self._link.lost(self, f"an answer of {size} bytes")
                return
            end = LENGTH_SIZE + size
            if len(buffer) < end:
                return
            frame = buffer[LENGTH_SIZE:end]
            del buffer[:end]
            if not self.up.done():
                self.up.set_result(True)
                self._link.ping_answered(self)
            else:
                self._link.received(self, frame)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if not self.up.done():
            self.up.set_result(False)
        self._link.lost(self, str(exc or "the connection was closed"))

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class Peers:
    """The links of a worker. `sockets`: of all workers, by their index."""

    def __init__(self, sockets: Sequence[str], own: int) -> None:
        self._sockets = sockets
        self._own = own
        self._links: dict[tuple[int, ApiKey], Link] = {}

    def link(self, worker: int, api: ApiKey, version: int) -> Link:
        found = self._links.get((worker, api))
        if found is None:
            found = Link(self._sockets[worker], self._own, worker, APIS[api], version)
            self._links[worker, api] = found
        return found

    def close(self) -> None:
        for link in self._links.values():
            link.close()
