"""What a private request looks like on the wire.

A frame like one of Kafka's: version 0, correlation id 0, no client id. Its body is one msgpack
document, or empty; so is the body of the answer. Version skew is no concern, since all processes of
a broker run the same code.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, Generic, TypeVar

import msgspec

from moldau.broker.wire.frame import LENGTH, RESPONSE_CORRELATION_ID_END

Q = TypeVar("Q")
A = TypeVar("A")

Bytes = bytes | bytearray | memoryview

_HEAD = struct.Struct(">hhih")  # API key, version, correlation id, length of the client id
_ANSWER_HEAD = struct.Struct(">ii")  # length, correlation id
ANSWER_HEAD_SIZE = _ANSWER_HEAD.size


class Asker(Enum):
    """Who may send a request. All of them connect to the unix socket of a worker or a router."""

    OPERATOR = "whoever may open the unix socket: tools, routers, the HTTP process"
    LOGIN = "whoever relays the login of a client over this connection"


class PrivateApi(Generic[Q, A]):
    """One private API: its key, and the types of its request and of its answer. None stands for an
    empty body; `answers` tells how often an answer comes."""

    __slots__ = ("_encode", "_read_answer", "_read_request", "answers", "asked_by", "key", "name")

    def __init__(
        self,
        key: int,
        name: str,
        request: type[Q] | None,
        answer: type[A] | None,
        asked_by: Asker = Asker.OPERATOR,
        *,
        answers: str = "once",
        is_sorted: bool = False,
    ) -> None:
        """`is_sorted`: equal answers have equal bytes."""
        self.key = key
        self.name = name
        self.asked_by = asked_by
        self.answers = answers
        self._encode = msgspec.msgpack.Encoder(order="sorted" if is_sorted else None).encode
        self._read_request = _reader(request)
        self._read_answer = _reader(answer)

    def __repr__(self) -> str:
        return self.name

    def request(self, request: Q) -> bytes:
        """A whole frame."""
        return private_frame(self.key, b"" if request is None else self._encode(request))

    def read_request(self, body: Bytes) -> Q:
        """Raises ValueError."""
        found: Q = self._read_request(body)
        return found

    def answer(self, answer: A, correlation_id: int | None = None) -> bytes:
        """A whole frame. An answer that is sent whenever there is news carries the API's key as its
        correlation id."""
        number = self.key if correlation_id is None else correlation_id
        return private_reply(number, self._encode(answer))

    def read_answer(self, body: Bytes) -> A:
        """Raises ValueError."""
        found: A = self._read_answer(body)
        return found

    def served_by(self, handler: Callable[[Q], Awaitable[A]]) -> tuple[int, PrivateHandler]:
        """The key, and a handler that takes a body and returns a whole frame."""

        async def serve(body: bytes, correlation_id: int) -> bytes:
            return self.answer(await handler(self.read_request(body)), correlation_id)

        return self.key, serve


PrivateHandler = Callable[[bytes, int], Awaitable[bytes]]


def _reader(kind: Any) -> Callable[[Bytes], Any]:
    if kind is None:
        return lambda _: None
    decode: Callable[[Bytes], Any] = msgspec.msgpack.Decoder(kind).decode
    return decode


def private_frame(key: int, body: bytes) -> bytes:
    return LENGTH.pack(_HEAD.size + len(body)) + _HEAD.pack(key, 0, 0, -1) + body


def private_reply(correlation_id: int, body: bytes) -> bytes:
    return _ANSWER_HEAD.pack(ANSWER_HEAD_SIZE - LENGTH.size + len(body), correlation_id) + body


def answer_body(frame: bytes) -> bytes:
    """The body of an answer that begins with its length."""
    return frame[RESPONSE_CORRELATION_ID_END:]
