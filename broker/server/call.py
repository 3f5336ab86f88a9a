"""A request being served, the route that serves repetitions of it without decoding them, and the
interfaces that a connection uses to serve, meter and limit requests.

The handler of the first request returns a `RequestRoute`. If the client encodes the request as this
code does, the connection caches the route and lets it serve the requests that match.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Protocol

import msgspec

from moldau.broker.security.identity import Identity, Role
from moldau.broker.settings.processes import Listener
from moldau.broker.wire.batch import Buffer
from moldau.broker.wire.frame import (
    API_SIZE,
    CORRELATION_ID_AT,
    CORRELATION_ID_END,
    LENGTH_SIZE,
    RequestHeader,
    request_frame,
    response_frame,
)
from moldau.broker.wire.primitives import INT32
from moldau.broker.wire.repeats import RequestPattern
from moldau.broker.wire.schema import Message

if TYPE_CHECKING:
    from moldau.broker.server.connection import Connection


logger = logging.getLogger("moldau.server")


class Call(msgspec.Struct, eq=False):
    """A request being served, and its reply once there is one."""

    is_metered: ClassVar[bool] = False  # whether a quota limits its client (metering.py)

    connection: Connection
    header: RequestHeader
    size: int
    received_ns: int = 0
    parts: list[Buffer] | None = None  # the reply, once there is one
    on_lost: Callable[[], None] | None = None  # called when the client is gone

    def reply(self, message: Message) -> None:
        header = self.header
        assert header.api is not None
        self.connection.counters.count_errors(header.api_key, message)
        try:
            self.parts = response_frame(
                header.api, header.api_version, header.correlation_id, message
            )
        except Exception:
            logger.exception(
                "the reply to %s v%d cannot be encoded", header.api.name, header.api_version
            )
            self.connection.abort()
            return
        self.connection.answered(self)

    def reply_with(self, frame: list[Buffer]) -> None:
        """Reply with an encoded frame."""
        self.parts = frame
        self.connection.answered(self)

    def no_reply(self) -> None:
        """The request is served and has no reply (Produce with acks=0)."""
        self.parts = []
        self.connection.answered(self)

    # --- quotas: what a metered call does otherwise ---

    def charge(self) -> int:
        """Charge what the request has used. Returns the throttle time for its reply, in
        milliseconds."""
        return 0

    @property
    def fetch_room(self) -> int | None:
        """The bytes of records that its reply may have; None: no limit."""
        return None

    def check_mutations(self, strict_since: int) -> None:
        """Call before a topic is changed. Raises KafkaError if the quota is exceeded and the
        version of the request knows the error."""

    def count_mutations(self, partitions: int, strict_since: int) -> None:
        """Count partitions that were created or deleted."""

    @property
    def peer(self) -> str:
        return self.connection.peer

    @property
    def identity(self) -> Identity:
        return self.connection.identity

    @property
    def is_from_worker(self) -> bool:
        """Whether another worker asks on behalf of its clients (coordinator/peers.py)."""
        return self.connection.identity.role is Role.WORKER


class ReplyHandle:
    """What a request leaves with a coordinator, which calls it with the answer, at once or later.
    The handlers of the single APIs add `answered`."""

    __slots__ = ("_call",)

    def __init__(self, call: Call) -> None:
        self._call = call

    def failed(self) -> None:
        """No reply could be made. The client asks again on another connection."""
        self._call.connection.abort()


Dispatch = Callable[[Call, bytearray], None]


class Metering(Protocol):
    """Counts what clients use of their quotas."""

    def call(self, connection: Connection, header: RequestHeader, size: int) -> Call: ...

    def dispatched(self, call: Call) -> None:
        """The handler has returned; the reply may come later."""


class Limiter(Protocol):
    """Decides which connections are too many."""

    def admit(
        self, connection: object, transport: asyncio.BaseTransport, ip: str, listener: Listener
    ) -> bool: ...

    def authenticated(self, connection: object) -> None: ...

    def left(self, connection: object) -> None: ...

    def unreadable(self, reason: str) -> None: ...


class RequestRoute(RequestPattern, ABC):
    """Serves requests that equal `request` in all but one run of bytes."""

    __slots__ = ("header", "request")

    def __init__(self, header: RequestHeader, request: Message) -> None:
        super().__init__()
        self.header = header
        self.request = request

    def learn(self, frame: bytearray) -> bool:
        """Match requests like this one from now on. Returns False if it is encoded in an unusual
        way, for instance with tagged fields, so that the positions of its fields are unknown."""
        header = self.header
        assert header.api is not None
        canonical = request_frame(
            header.api, header.api_version, 0, header.client_id, self.request
        )[LENGTH_SIZE:]
        start, end = self.varying(canonical)
        self.set_bytes(canonical[:API_SIZE], canonical[CORRELATION_ID_END:start], canonical[end:])
        return self.matches(frame, 0, len(frame))

    def header_of(self, frame: bytearray) -> RequestHeader:
        known = self.header
        return RequestHeader(
            known.api_key,
            known.api_version,
            INT32.unpack_from(frame, CORRELATION_ID_AT)[0],
            known.client_id,
            known.api,
            known.body_at,
        )

    @abstractmethod
    def varying(self, canonical: bytes) -> tuple[int, int]:
        """The start and end of the bytes in the frame of `request` that differ each time."""

    def answer(self, frame: bytearray) -> bytes | None:
        """The whole reply, if it can be given at once and without a `Call`; otherwise None."""
        return None

    @abstractmethod
    def serve(self, call: Call, frame: bytearray) -> bool:
        """Returns False if the rest is not as expected: then the request has to be decoded."""
