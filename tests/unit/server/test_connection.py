"""A connection: replies in order, back-pressure, bad frames, the end.

Bad frames are fed through the protocol's own buffer calls, as the event loop does; what depends on
a real socket is tried with one. How frames are cut is in tests/unit/wire/test_frame_reader.py.
"""

import asyncio
import logging
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import pytest
import uvloop

from broker.server import connection as module
from broker.server.budget import Budget
from broker.server.connection import Call, Connection

MIB = 1 << 20
MAX_FRAME = 16 * MIB
API_VERSIONS_V0 = struct.pack(">hhih", 18, 0, 7, -1)  # the smallest request there is


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


def echo(call: Call, frame: bytearray) -> None:
    """A dispatch that answers at once, with the correlation id."""
    call.reply_with([struct.pack(">ii", 4, call.header.correlation_id)])


class FakeTransport:
    """Notes what a connection asks of its transport; for framing, which needs no socket."""

    def __init__(self) -> None:
        self.aborted = False
        self.reading = True

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return ("192.0.2.1", 1)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def abort(self) -> None:
        self.aborted = True


def feed(connection: Connection, data: bytes, chunks: Callable[[], int]) -> None:
    """Hand over bytes as an event loop would: into the buffer the connection gives."""
    view = memoryview(data)
    while view:
        buffer = connection.get_buffer(-1)
        taken = min(len(buffer), max(chunks(), 1), len(view))
        buffer[:taken] = view[:taken]
        connection.buffer_updated(taken)
        view = view[taken:]


def received(data: bytes, chunks: Callable[[], int]) -> tuple[list[bytes], FakeTransport]:
    async def receive() -> tuple[list[bytes], FakeTransport]:
        recorder = Recorder()
        transport = FakeTransport()
        big = Budget(1 << 40, 1 << 40)
        connection = Connection(recorder, big, set(), MAX_FRAME)
        connection.connection_made(cast("asyncio.BaseTransport", transport))
        feed(connection, data, chunks)
        return recorder.frames, transport

    return uvloop.run(receive())


@pytest.mark.parametrize("length", [-1, -(1 << 31), 0, 7, MAX_FRAME + 1, (1 << 31) - 1])
def test_1_an_absurd_length_closes_the_connection_and_says_why(
    length: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        got, transport = received(struct.pack(">i", length) + b"x" * 64, lambda: 1 << 30)
    assert got == []
    assert transport.aborted
    assert f"a frame of {length} bytes" in caplog.text
    assert "192.0.2.1" in caplog.text


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (struct.pack(">hhih", 18, 0, 1, 500) + b"short", "client id of 500 bytes overruns"),
        (struct.pack(">hhih", 18, 0, 1, -7), "client id of -7 bytes"),
        (struct.pack(">hhih", 18, 0, 1, 2) + b"\xff\xff", "request header"),
        (struct.pack(">hhih", 18, 3, 1, -1), "request header"),  # tagged fields missing
    ],
)
def test_1_a_header_that_is_none_closes_the_connection_and_says_why(
    frame: bytes, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        got, transport = received(framed(frame), lambda: 1 << 30)
    assert got == []
    assert transport.aborted
    assert why in caplog.text


# --- with a socket ---


@asynccontextmanager
async def served(
    dispatch: module.Dispatch, budget: Budget | None = None
) -> AsyncIterator[tuple[socket.socket, set[Connection]]]:
    """A connection to a server of ours."""
    loop = asyncio.get_running_loop()
    connections: set[Connection] = set()
    used = budget or Budget(64 * MIB, 16 * MIB)
    server = await loop.create_server(
        lambda: Connection(dispatch, used, connections, MAX_FRAME), "127.0.0.1", 0
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


async def test_replies_leave_in_the_order_of_their_requests() -> None:
    recorder = Recorder()
    async with served(recorder) as (client, _):
        await send(client, framed(*(request(number) for number in range(5))))
        await until(lambda: len(recorder.calls) == 5)
        for number in (3, 1, 4):
            answer(recorder.calls[number])
        answer(recorder.calls[0])
        assert await exactly(client, 16) == struct.pack(">iiii", 4, 0, 4, 1)
        answer(recorder.calls[2])
        assert await exactly(client, 24) == struct.pack(">iiiiii", 4, 2, 4, 3, 4, 4)


async def test_one_without_a_reply_does_not_hold_up_the_next() -> None:
    recorder = Recorder()
    async with served(recorder) as (client, _):
        await send(client, framed(request(1), request(2)))
        await until(lambda: len(recorder.calls) == 2)
        answer(recorder.calls[1])
        recorder.calls[0].no_reply()
        assert await exactly(client, 8) == struct.pack(">ii", 4, 2)


async def test_too_many_unanswered_bytes_stop_the_reading() -> None:
    recorder = Recorder()
    budget = Budget(64 * MIB, 2 * MIB)
    async with served(recorder, budget) as (client, _):
        sending = asyncio.ensure_future(
            send(client, framed(*(request(number, MIB // 2) for number in range(100))))
        )
        await until(lambda: len(recorder.calls) >= 5)
        await asyncio.sleep(0.2)
        assert len(recorder.calls) == 5  # what went over the limit was the last
        assert not sending.done()
        answered = 0
        while answered < 100:
            await recorder.more_than(answered)
            answer(recorder.calls[answered])
            answered += 1
            assert budget.used <= 3 * MIB
        await sending
        for number in range(100):
            assert await exactly(client, 8) == struct.pack(">ii", 4, number)
        assert budget.used == 0


async def test_too_many_unanswered_requests_stop_the_reading() -> None:
    recorder = Recorder()
    async with served(recorder) as (client, _):
        await send(client, framed(*(request(number) for number in range(2_000))))
        await until(lambda: len(recorder.calls) >= module.MAX_UNANSWERED)
        await asyncio.sleep(0.1)
        assert len(recorder.calls) == module.MAX_UNANSWERED
        answered = 0
        while answered < 2_000:
            await recorder.more_than(answered)
            for call in recorder.calls[answered:]:
                answer(call)
                answered += 1
        expected = b"".join(struct.pack(">ii", 4, number) for number in range(2_000))
        assert await exactly(client, len(expected)) == expected


async def test_a_client_that_does_not_read_is_not_read_from() -> None:
    """And what waits for it is counted, so that others get smaller replies, not none."""

    begun = 0

    def large(call: Call, frame: bytearray) -> None:
        nonlocal begun
        begun += 1
        answer(call, 4 * MIB)

    budget = Budget(64 * MIB, 16 * MIB)
    plenty = budget.reply_room
    async with served(large, budget) as (client, connections):
        await send(client, framed(*(request(number) for number in range(100))))
        await until(lambda: budget.held > 0)
        await asyncio.sleep(0.2)
        # All that arrived in one piece was begun together; nothing is begun after it.
        stuck = begun
        await send(client, framed(request(1_000)))
        await asyncio.sleep(0.1)
        assert begun == stuck
        assert budget.held > 4 * MIB
        assert budget.reply_room < plenty
        for number in range(100):
            head = await exactly(client, 8)
            assert head == struct.pack(">ii", 4 + 4 * MIB, number)
            await exactly(client, 4 * MIB)
        await exactly(client, 8)
        await exactly(client, 4 * MIB)
        await until(lambda: budget.held == 0)
        assert len(connections) == 1


async def test_nothing_is_begun_behind_one_that_holds_the_connection() -> None:
    recorder = Recorder()

    def holds(call: Call, frame: bytearray) -> None:
        recorder(call, frame)
        if call.header.correlation_id in (1, 3):
            call.connection.hold()

    async with served(holds) as (client, connections):
        await send(client, framed(*(request(number) for number in range(1, 4))))
        await until(lambda: len(recorder.calls) == 1)
        await send(client, framed(request(4)))
        await asyncio.sleep(0.05)
        assert len(recorder.calls) == 1
        (connection,) = connections
        connection.resume_soon()
        await until(lambda: len(recorder.calls) == 3)  # the third holds it again
        answer(recorder.calls[0])
        assert await exactly(client, 8) == struct.pack(">ii", 4, 1)
        assert len(recorder.calls) == 3
        connection.resume()
        await until(lambda: len(recorder.calls) == 4)


async def test_behind_one_that_holds_the_connection_little_is_read_and_its_end_is_seen() -> None:
    recorder = Recorder()

    def holds(call: Call, frame: bytearray) -> None:
        recorder(call, frame)
        call.connection.hold()

    lost: list[int] = []
    async with served(holds) as (client, connections):
        await send(client, framed(request(1)))
        await until(lambda: len(recorder.calls) == 1)
        recorder.calls[0].on_lost = lambda: lost.append(1)
        (connection,) = connections
        sending = asyncio.ensure_future(
            send(client, framed(*(request(number, MIB) for number in range(2, 100))))
        )
        await asyncio.sleep(0.2)
        assert not sending.done()
        assert len(connection._backlog) <= module.MAX_BACKLOG + 1
        sending.cancel()
    async with served(holds) as (client, connections):
        await send(client, framed(request(1)))
        await until(lambda: len(recorder.calls) == 2)
        recorder.calls[1].on_lost = lambda: lost.append(2)
        client.close()
        await until(lambda: lost == [1, 2])


async def test_what_a_lost_connection_held_is_given_back() -> None:
    recorder = Recorder()
    budget = Budget(64 * MIB, 16 * MIB)
    lost: list[int] = []
    async with served(recorder, budget) as (client, connections):
        await send(client, framed(*(request(number, 1000) for number in range(5))))
        await until(lambda: len(recorder.calls) == 5)
        for number, call in enumerate(recorder.calls):
            call.on_lost = lambda number=number: lost.append(number)
        answer(recorder.calls[0], 8 * MIB)
        await until(lambda: budget.held > 0)
        client.close()
        await until(lambda: not connections)
        assert budget.used == 0
        assert budget.held == 0
        assert lost == [1, 2, 3, 4]
        answer(recorder.calls[1])  # comes too late, and nothing happens


async def test_the_budget_of_all_connections_pauses_and_resumes_them() -> None:
    recorder = Recorder()
    budget = Budget(4 * MIB, 64 * MIB)
    async with served(recorder, budget) as (client, connections):
        other = socket.socket()
        other.setblocking(False)
        (connection,) = connections
        assert connection._transport is not None
        address = connection._transport.get_extra_info("sockname")
        await asyncio.get_running_loop().sock_connect(other, address)
        first = asyncio.ensure_future(
            send(client, framed(*(request(number, MIB) for number in range(20))))
        )
        await until(lambda: budget.exhausted)
        second = asyncio.ensure_future(
            send(other, framed(*(request(100 + number, MIB) for number in range(20))))
        )
        answered = 0
        while answered < 40:
            await recorder.more_than(answered)
            assert budget.used <= 6 * MIB
            answer(recorder.calls[answered])
            answered += 1
        await asyncio.gather(first, second)
        for number in range(20):
            assert await exactly(client, 8) == struct.pack(">ii", 4, number)
            assert await exactly(other, 8) == struct.pack(">ii", 4, 100 + number)
        assert budget.used == 0
        other.close()


async def test_draining_answers_what_was_begun_and_closes() -> None:
    recorder = Recorder()
    async with served(recorder) as (client, connections):
        await send(client, framed(request(1), request(2)))
        await until(lambda: len(recorder.calls) == 2)
        (connection,) = connections
        connection.drain()
        await send(client, framed(request(3)))
        answer(recorder.calls[1])
        answer(recorder.calls[0])
        assert await exactly(client, 16) == struct.pack(">iiii", 4, 1, 4, 2)
        await until(lambda: not connections)
        assert len(recorder.calls) == 2


async def test_a_fault_of_the_dispatch_closes_its_own_connection_only() -> None:
    """Even when it happens while another connection's reply makes room."""

    recorder = Recorder()
    budget = Budget(MIB, 64 * MIB)

    def breaks(call: Call, frame: bytearray) -> None:
        if call.header.correlation_id == 13:
            raise RuntimeError("on purpose")
        recorder(call, frame)

    async with served(breaks, budget) as (client, connections):
        other = socket.socket()
        other.setblocking(False)
        (connection,) = connections
        assert connection._transport is not None
        address = connection._transport.get_extra_info("sockname")
        await asyncio.get_running_loop().sock_connect(other, address)
        await send(client, framed(request(1, MIB + 1)))
        await until(lambda: budget.exhausted)
        await send(other, framed(request(2), request(13)))
        await until(lambda: len(recorder.calls) == 2)
        answer(recorder.calls[0])  # room again: the other one's request 13 is begun
        assert await exactly(client, 8) == struct.pack(">ii", 4, 1)
        await until(lambda: len(connections) == 1)
        assert connection in connections
        await send(client, framed(request(4)))
        await until(lambda: len(recorder.calls) == 3)
        other.close()


async def test_a_dispatch_that_closes_the_connection_with_no_room_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with served(lambda call, frame: call.connection.abort(), Budget(1, 1)) as (
        client,
        connections,
    ):
        await until(lambda: len(connections) == 1)
        await send(client, framed(request(1)))
        await until(lambda: not connections)
    assert not caplog.text


async def test_a_client_that_stopped_in_the_middle_of_a_frame_is_idle() -> None:
    async with served(echo) as (client, connections):
        await send(client, framed(request(1))[:9])
        await until(lambda: bool(connections))
        (connection,) = connections
        await until(lambda: connection._frames.is_inside_frame)
        assert connection.is_idle
        connection.close_idle()
        await until(lambda: not connections)


async def test_an_idle_client_that_never_reads_is_cut_off() -> None:
    async with served(lambda call, frame: answer(call, 8 * MIB)) as (client, connections):
        await send(client, framed(request(1)))
        await until(lambda: any(one._write_paused for one in connections))
        (connection,) = connections
        assert connection.is_idle
        connection.close_idle()
        await until(lambda: not connections)
