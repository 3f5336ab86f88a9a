"""The client of private requests: one request over a connection of its own.

Returns None when the process does not answer in time, or not to this request.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from typing import TypeVar

from moldau.broker.private.api import ANSWER_HEAD_SIZE, PrivateApi
from moldau.broker.wire.frame import LENGTH

Q = TypeVar("Q")
A = TypeVar("A")

MAX_ANSWER_BYTES = 64 << 20


async def ask(path: str, api: PrivateApi[Q, A], request: Q, patience_s: float) -> A | None:
    try:
        async with asyncio.timeout(patience_s):
            reader, writer = await asyncio.open_unix_connection(path, limit=1 << 20)
            try:
                writer.write(api.request(request))
                size = _body_size(await reader.readexactly(ANSWER_HEAD_SIZE))
                return api.read_answer(await reader.readexactly(size))
            finally:
                writer.close()
    except (OSError, TimeoutError, EOFError, ValueError):
        return None


async def ask_each(
    paths: Iterable[str], api: PrivateApi[Q, A], request: Q, patience_s: float
) -> list[A | None]:
    """The same request to several processes at once; the answers in the order of `paths`."""

    async def one(path: str) -> A | None:
        return await ask(path, api, request, patience_s)

    return await asyncio.gather(*map(one, paths))


def ask_blocking(path: str, api: PrivateApi[Q, A], request: Q, timeout_s: float) -> A | None:
    body = exchange(path, api.request(request), timeout_s)
    try:
        return None if body is None else api.read_answer(body)
    except ValueError:
        return None


def exchange(path: str, frame: bytes, timeout_s: float) -> bytes | None:
    """Send a frame; returns the body of the answer."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout_s)
            connection.connect(path)
            connection.sendall(frame)
            with connection.makefile("rb") as replies:
                size = _body_size(replies.read(ANSWER_HEAD_SIZE))
                body = replies.read(size)
                return body if len(body) == size else None
    except (OSError, ValueError):
        return None


def _body_size(head: bytes) -> int:
    """Raises ValueError."""
    if len(head) < ANSWER_HEAD_SIZE:
        raise ValueError("the connection was closed")
    size: int = LENGTH.unpack_from(head)[0] + LENGTH.size - ANSWER_HEAD_SIZE
    if not 0 <= size <= MAX_ANSWER_BYTES:
        raise ValueError(f"an answer of {size} bytes")
    return size
