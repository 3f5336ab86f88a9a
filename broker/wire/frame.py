"""Frames and headers: the bytes that precede a message on the wire.

A frame is an int32 length and that many bytes. A request begins with its header (API key, version,
correlation id, client id, and tagged fields when flexible); a response with the correlation id (and
tagged fields when flexible).
"""

from __future__ import annotations

import struct

import msgspec

from moldau.broker.wire.apis import Api, lookup
from moldau.broker.wire.batch import Buffer
from moldau.broker.wire.primitives import INT32, MalformedMessage, read_uvarint, skip_tags
from moldau.broker.wire.schema import Message

LENGTH = struct.Struct(">i")
LENGTH_SIZE = LENGTH.size

# The positions of fields in a request frame without its length field; with it, add LENGTH_SIZE. API
# key and version, the first API_SIZE bytes, determine the layout of everything that follows.
API_SIZE = 4
CORRELATION_ID_AT = API_SIZE
CORRELATION_ID_END = CORRELATION_ID_AT + INT32.size
# The position in a response frame with its length field.
RESPONSE_CORRELATION_ID_AT = LENGTH_SIZE
RESPONSE_CORRELATION_ID_END = RESPONSE_CORRELATION_ID_AT + INT32.size

_HEAD = struct.Struct(">hhih")  # API key, version, correlation id, length of the client id
_RESPONSE_HEAD = struct.Struct(">ii")
_RESPONSE_HEAD_TAGS = struct.Struct(">iiB")
JOIN_BELOW = 16384  # smaller responses are joined: cheaper than writing many parts


class RequestHeader(msgspec.Struct, frozen=True, gc=False):
    """The header of a request: a Struct, which is cheaper to create than a NamedTuple."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    api: Api | None  # None: this API or this version of it is not served
    body_at: int


def read_request_header(frame: bytes | bytearray) -> RequestHeader:
    """Read the header of a request frame (without its length). Raises MalformedMessage."""
    try:
        key, version, correlation, size = _HEAD.unpack_from(frame)
        position = _HEAD.size
        client_id = None
        if size >= 0:
            end = position + size
            if end > len(frame):
                raise MalformedMessage(f"client id of {size} bytes overruns the frame")
            client_id = frame[position:end].decode()
            position = end
        elif size != -1:
            raise MalformedMessage(f"client id of {size} bytes")
        api = lookup(key, version)
        if api is not None and version >= api.flexible_from:
            count = frame[position]
            position += 1
            if count:
                count, position = read_uvarint(frame, position - 1)
                position = skip_tags(frame, position, len(frame), count)
    except (struct.error, IndexError, UnicodeDecodeError) as fault:
        raise MalformedMessage(f"request header: {fault}") from None
    return RequestHeader(key, version, correlation, client_id, api, position)


def response_frame(api: Api, version: int, correlation_id: int, message: Message) -> list[Buffer]:
    """Return a whole response frame as parts to be written one after the other."""
    parts: list[Buffer] = [b""]
    api.response_codec(version).encode(message, parts)
    size = sum(map(len, parts)) + INT32.size  # the correlation id
    if api.response_header_has_tags(version):
        parts[0] = _RESPONSE_HEAD_TAGS.pack(size + 1, correlation_id, 0)
    else:
        parts[0] = _RESPONSE_HEAD.pack(size, correlation_id)
    if size < JOIN_BELOW:
        return [b"".join(parts)]
    return parts


def request_frame(
    api: Api, version: int, correlation_id: int, client_id: str | None, message: Message
) -> bytes:
    """Return a whole request frame, with its length, as a client sends it.

    Workers compare clients' requests with it (server/call.py), routers forward parts of
    requests with it, and the tools and the load test are clients.
    """
    name = (client_id or "").encode()
    head = _HEAD.pack(api.key, version, correlation_id, -1 if client_id is None else len(name))
    parts: list[Buffer] = [head, name, b"\0" if version >= api.flexible_from else b""]
    api.request_codec(version).encode(message, parts)
    body = b"".join(parts)
    return LENGTH.pack(len(body)) + body


def read_response(api: Api, version: int, frame: bytes | bytearray) -> tuple[int, Message]:
    """Return the correlation id and message of a response frame (without its length), for
    clients."""
    try:
        (correlation_id,) = INT32.unpack_from(frame)
        position = INT32.size
        if api.response_header_has_tags(version):
            count, position = read_uvarint(frame, position)
            position = skip_tags(frame, position, len(frame), count)
    except (struct.error, IndexError) as fault:
        raise MalformedMessage(f"response header: {fault}") from None
    message, position = api.response_codec(version).decode(frame, position)
    if position != len(frame):
        raise MalformedMessage(f"{len(frame) - position} bytes after the response")
    return correlation_id, message
