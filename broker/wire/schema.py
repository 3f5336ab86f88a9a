"""Declared fields become flat encode and decode functions, one pair per message and version.

A message is a class of annotated fields; every field has a default, as in Kafka:

    class HeartbeatRequest(Message):
        group_id: String = ""
        generation_id: Int32 = 0
        member_id: String = ""
        group_instance_id: Annotated[String | None, F(since=3)] = None

`codegen.codec(HeartbeatRequest, version=4, flexible=True)` writes the Python source of a decoder
and an encoder for exactly that version, compiles it once and keeps it. There is no interpretation
of the declaration while serving.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from moldau.broker.wire.batch import Buffer

NEVER = 1 << 15


class Message(msgspec.Struct, gc=False):
    """Base of every message and of the structures inside one.

    Messages are trees of plain values: the cycle collector need not look at them.
    """


class Primitive(NamedTuple):
    kind: str


class F(NamedTuple):
    """Declares the versions since..until in which a field is on the wire, nullable or tagged."""

    since: int = 0
    until: int = NEVER
    nullable: int = 0
    tag: int = NEVER
    tagged_since: int = 0


Bool = Annotated[bool, Primitive("bool")]
Int8 = Annotated[int, Primitive("int8")]
Int16 = Annotated[int, Primitive("int16")]
UInt16 = Annotated[int, Primitive("uint16")]
Int32 = Annotated[int, Primitive("int32")]
Int64 = Annotated[int, Primitive("int64")]
Float64 = Annotated[float, Primitive("float64")]
Uuid = Annotated[bytes, Primitive("uuid")]
String = Annotated[str, Primitive("string")]
Bytes = Annotated[bytes, Primitive("bytes")]
# An array of int8 is laid out like bytes, and handled as such: a list of 500 types costs more than
# the rest of the request. Negative values come out above 127.
Int8Array = Annotated[bytes, Primitive("int8_array")]
# Decoded, this is a view into the frame, not a copy. Encoded, it is one buffer, or a list of them
# laid end to end, which reach the socket as they are.
Records = Annotated[Buffer | list[Buffer], Primitive("records")]

NO_UUID = bytes(16)


class Field(NamedTuple):
    """One declared field, as the code generator needs it."""

    name: str
    kind: str  # the name of a primitive, or "struct"
    struct: type[Message] | None
    is_array: bool
    optional: bool
    default: Any
    rule: F

    def present(self, version: int) -> bool:
        return self.rule.since <= version <= self.rule.until

    def tagged(self, version: int) -> bool:
        return self.rule.tag != NEVER and version >= self.rule.tagged_since

    def nullable(self, version: int) -> bool:
        return self.optional and version >= self.rule.nullable


M = TypeVar("M", bound=Message)
Decoder = Callable[[Buffer, int], tuple[M, int]]
Encoder = Callable[[M, list[Buffer]], None]


class Codec(NamedTuple):
    """`decode(buffer, position)` returns the message and where it ends; `encode` appends parts."""

    decode: Decoder[Any]
    encode: Encoder[Any]


@cache
def fields_of(message: type[Message]) -> tuple[Field, ...]:
    hints = typing.get_type_hints(message, include_extras=True)
    return tuple(
        _declared(info.name, hints[info.name], _default(info))
        for info in msgspec.structs.fields(message)
    )


def _default(info: msgspec.structs.FieldInfo) -> Any:
    if info.default_factory is not msgspec.NODEFAULT:
        return info.default_factory()
    return info.default


def _declared(name: str, hint: Any, default: Any) -> Field:
    rule, primitive, optional, is_array = F(), None, False, False
    while True:
        origin = typing.get_origin(hint)
        if origin is Annotated:
            for extra in hint.__metadata__:
                if isinstance(extra, F):
                    rule = extra
                elif isinstance(extra, Primitive):
                    primitive = extra
            hint = hint.__origin__
            if primitive is not None:
                break
        elif origin in (typing.Union, types.UnionType):
            (hint,) = (arm for arm in typing.get_args(hint) if arm is not types.NoneType)
            optional = True
        elif origin is list:
            (hint,) = typing.get_args(hint)
            is_array = True
        else:
            break
    struct = None if primitive else typing.cast("type[Message]", hint)
    kind = primitive.kind if primitive else "struct"
    return Field(name, kind, struct, is_array, optional, default, rule)
