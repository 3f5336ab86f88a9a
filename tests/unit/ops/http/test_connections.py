"""Connections that send half a request, or read no answer: they end, and others are served."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from moldau.ops.http.connections import BoundedProtocol, Room, Waiting

LONG_S = 3600.0  # a deadline that does not matter to the test
PATIENCE_S = 60.0

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[..., Awaitable[Streams]]


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers with as many bytes as the path says, once it has the body."""
    while scope["method"] == "POST":
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        if not message["more_body"]:
            break
    if scope["path"] == "/stay":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        return
    size = int(scope["path"][1:])
    headers = [(b"content-length", str(size).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"x" * size})


@asynccontextmanager
async def served(**facts: Any) -> AsyncIterator[Connect]:
    """Connects to a server whose protocol has these facts."""
    usual = {"room": Room(), "headers_s": LONG_S, "body_s": LONG_S, "unread_s": LONG_S}
    protocol = type("Bounded", (BoundedProtocol,), usual | facts)
    config = uvicorn.Config(
        app, http=protocol, ws="none", lifespan="off", log_config=None, timeout_keep_alive=3600
    )
    server = uvicorn.Server(config)
    listener = socket.create_server(("127.0.0.1", 0))
    serving = asyncio.ensure_future(server.serve([listener]))
    port = listener.getsockname()[1]
    writers = []

    async def connect(sent: bytes = b"", limit: int = 1 << 16) -> Streams:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=limit)
        writers.append(writer)
        writer.write(sent)
        return reader, writer

    try:
        yield connect
    finally:
        for writer in writers:
            writer.transport.abort()
        server.should_exit = server.force_exit = True
        await serving
        listener.close()


async def is_closed(streams: Streams) -> bool:
    """Waits for the end."""
    try:
        return await asyncio.wait_for(streams[0].read(1), PATIENCE_S) == b""
    except ConnectionResetError:
        return True


async def is_answered(streams: Streams) -> bool:
    line = await asyncio.wait_for(streams[0].readline(), PATIENCE_S)
    return line.startswith(b"HTTP/1.1 200")


GET = b"GET /1 HTTP/1.1\r\nHost: a\r\n\r\n"
STAY = GET.replace(b" /1 ", b" /stay ")
HALF = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
HALF_BODY = b"POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n1234"


@pytest.mark.parametrize("sent", [b"", HALF, GET + HALF])
def test_headers_have_a_deadline(sent: bytes) -> None:
    async def check() -> None:
        async with served(headers_s=0.1) as connect:
            streams = await connect(sent)
            if sent.startswith(GET):
                assert await is_answered(streams)
                await streams[0].readuntil(b"\r\n\r\nx")
                streams[1].write(b"X: y\r\n")  # more of the headers of the next one
            assert await is_closed(streams)

    asyncio.run(check())


def test_bytes_that_come_one_by_one_do_not_put_off_the_deadline() -> None:
    async def drip(writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"x")
            await asyncio.sleep(0.01)

    async def check(sent: bytes) -> None:
        async with served(headers_s=0.1, body_s=0.1) as connect:
            reader, writer = await connect(sent)
            dripping = asyncio.ensure_future(drip(writer))
            assert await is_closed((reader, writer))
            dripping.cancel()

    asyncio.run(check(HALF + b"X: "))
    asyncio.run(check(HALF_BODY.replace(b"9", b"999999")))


def test_a_body_has_a_deadline_of_its_own() -> None:
    async def check() -> None:
        async with served(body_s=0.1) as connect:
            assert await is_closed(await connect(HALF_BODY))
        async with served(headers_s=0.1) as connect:
            streams = await connect(HALF_BODY)
            await asyncio.sleep(0.3)  # past the deadline for headers, which have come
            streams[1].write(b"56789")
            assert await is_answered(streams)

    asyncio.run(check())


def test_a_request_that_is_answered_and_what_is_idle_after_it_have_no_deadline() -> None:
    async def check() -> None:
        async with served(headers_s=0.1, body_s=0.1) as connect:
            staying = await connect(STAY)
            streams = await connect(GET)
            assert await is_answered(streams)
            await streams[0].readuntil(b"\r\n\r\nx")
            await asyncio.sleep(0.3)
            streams[1].write(GET)
            assert await is_answered(streams)
            assert not staying[0].at_eof()

    asyncio.run(check())


class Watched(Room):
    def __init__(self) -> None:
        super().__init__()
        self.left = asyncio.Event()

    def leave(self, connection: Waiting) -> None:
        super().leave(connection)
        self.left.set()


def test_an_answer_that_is_not_read_is_given_up() -> None:
    async def check() -> None:
        room = Watched()
        async with served(unread_s=0.1, room=room) as connect:
            await connect(GET.replace(b" /1 ", b" /50000000 "), limit=1)
            async with asyncio.timeout(PATIENCE_S):
                await room.left.wait()

    asyncio.run(check())


def test_the_oldest_that_waits_makes_room_for_a_new_one() -> None:
    async def check() -> None:
        room = Room(most=9, most_of_address=3)
        async with served(room=room) as connect:
            staying = await connect(STAY)
            assert await is_answered(staying)
            halves = [await connect(HALF) for _ in range(10)]
            for each in halves[:-2]:
                assert await is_closed(each)
            newest = await connect(GET)
            assert await is_answered(newest)
            assert await is_closed(halves[-2])
            assert not staying[0].at_eof()
            assert len(room) == 3
            # While all are answered there is no room.
            others = [await connect(STAY) for _ in range(2)]
            assert all([await is_answered(each) for each in others])
            assert await is_closed(await connect(GET))
            assert not any(reader.at_eof() for reader, _ in (staying, *others))

    asyncio.run(check())


class Idle:
    is_waiting = True

    def __init__(self) -> None:
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


def test_there_is_room_for_so_many_addresses() -> None:
    room = Room(most=4, most_of_address=3)
    connections = [Idle() for _ in range(6)]
    for number, each in enumerate(connections):
        assert room.enter(each, f"address {number % 3}")
    assert [each.aborted for each in connections] == [True, True, False, False, False, False]
    for each in connections:
        room.leave(each)
        room.leave(each)
    assert len(room) == 0
