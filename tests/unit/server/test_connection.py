"""A connection: replies in order, back-pressure, bad frames, the end.

Bad frames are fed through the protocol's own buffer calls, as the event loop does; what depends on
a real socket is tried with one. How frames are cut is in tests/unit/wire/test_framing.py.
"""

import asyncio
import logging
import socket
import struct
from collections.abc import Callable
from typing import cast

import pytest
import uvloop

from moldau.broker.server.call import Call
from moldau.broker.server.connection import Connection
from moldau.broker.server.limits import Budget
from moldau.broker.settings.processes import Listener
from tests.support.drivers.connections import (
    MAX_FRAME,
    MIB,
    Recorder,
    answer,
    exactly,
    framed,
    request,
    send,
    served,
    until,
)


def echo(call: Call, frame: bytearray) -> None:
    """A dispatch that answers at once, with the correlation id."""
    call.reply_with([struct.pack(">ii", 4, call.header.correlation_id)])


class FakeTransport:
    """Notes what a connection asks of its transport; for framing, which needs no socket."""

    def __init__(self) -> None:
        self.aborted = False
        self.reading = True
        self.peer: tuple[str, int] | None = ("192.0.2.1", 1)

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_extra_info(self, name: str) -> tuple[str, int] | None:
        return self.peer

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
        connection = Connection(recorder, big, set(), MAX_FRAME, Listener())
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


def test_a_tcp_connection_without_an_address_is_nobodys_operator() -> None:
    async def accept() -> tuple[Connection, FakeTransport]:
        transport = FakeTransport()
        transport.peer = None  # the client reset it before it was accepted
        connection = Connection(Recorder(), Budget(1 << 20, 1 << 20), set(), MAX_FRAME, Listener())
        connection.connection_made(cast("asyncio.BaseTransport", transport))
        return connection, transport

    connection, transport = uvloop.run(accept())
    assert transport.aborted
    assert not connection.identity.is_trusted
