"""Serves repeated requests of a connection without decoding them.

The handler of the first request returns a `RequestRoute`. If the client encodes the request as this
code does, the connection caches the route and lets it serve the requests that match.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from moldau.broker.wire.frame import (
    API_SIZE,
    CORRELATION_ID_AT,
    CORRELATION_ID_END,
    LENGTH_SIZE,
    RequestHeader,
    request_frame,
)
from moldau.broker.wire.primitives import INT32
from moldau.broker.wire.request_cache import RequestPattern
from moldau.broker.wire.schema import Message

if TYPE_CHECKING:
    from moldau.broker.server.call import Call


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
