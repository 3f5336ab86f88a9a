"""Messages declared for tests of the code generator, and their codecs."""

from __future__ import annotations

from typing import Annotated, Any

from moldau.broker.wire.batch import Buffer
from moldau.broker.wire.codegen.compiler import codec
from moldau.broker.wire.schema import (
    F,
    Int16,
    Int64,
    Message,
    String,
)


class Inner(Message):
    name: String = ""
    value: Annotated[Int16, F(since=1)] = 7
    late: Annotated[Int64, F(since=1, tag=0)] = -1


def encode(message: Message, version: int) -> bytes:
    parts: list[Buffer] = []
    codec(type(message), version, version >= 1).encode(message, parts)
    return b"".join(parts)


def decode(message: type[Message], version: int, encoded: bytes | bytearray, at: int = 0) -> Any:
    return codec(message, version, version >= 1).decode(encoded, at)


class Named(Message):
    name: String = ""
