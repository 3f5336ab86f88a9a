"""A worker's connection behind a real socket, with a dispatch of the test's own."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from moldau.broker.server.call import Call, Dispatch
from moldau.broker.server.connection import Connection
from moldau.broker.server.limits import Budget
from moldau.broker.settings.processes import Listener

MIB = 1 << 20
MAX_FRAME = 16 * MIB


def request(correlation_id: int, size: int = 0) -> bytes:
    """ApiVersions v0 with a frame of (at least) `size` bytes, each of which tells its place."""
    body = struct.pack(">hhih", 18, 0, correlation_id, -1)
    filling = max(size - len(body), 0)
    pattern = struct.pack(">I", correlation_id) + bytes(range(251))
    return body + (pattern * (filling // len(pattern) + 1))[:filling]


def framed(*frames: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)


class Recorder:
    """A dispatch that keeps calls until the test answers them."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.calls: list[Call] = []

    def __call__(self, call: Call, frame: bytearray) -> None:
        self.frames.append(bytes(frame))
        self.calls.append(call)

    async def more_than(self, count: int) -> None:
        await until(lambda: len(self.calls) > count)


# --- with a socket ---


@asynccontextmanager
async def served(
    dispatch: Dispatch, budget: Budget | None = None
) -> AsyncIterator[tuple[socket.socket, set[Connection]]]:
    """A connection to a server of ours."""
    loop = asyncio.get_running_loop()
    connections: set[Connection] = set()
    used = budget or Budget(64 * MIB, 16 * MIB)
    server = await loop.create_server(
        lambda: Connection(dispatch, used, connections, MAX_FRAME, Listener()), "127.0.0.1", 0
    )
    client = socket.socket()
    client.setblocking(False)
    await loop.sock_connect(client, server.sockets[0].getsockname())
    try:
        yield client, connections
    finally:
        client.close()
        server.close()
        for connection in list(connections):
            connection.abort()
        await until(lambda: not connections)
        await asyncio.sleep(0.01)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def send(client: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(client, data)


async def exactly(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = await asyncio.get_running_loop().sock_recv(client, size - len(data))
        assert piece, "closed"
        data += piece
    return data


def answer(call: Call, size: int = 0) -> None:
    payload = bytes(size)
    call.reply_with([struct.pack(">ii", 4 + size, call.header.correlation_id), payload])
