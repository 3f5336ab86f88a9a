"""A connection that is muted: nothing is served, little is read, and its end is noticed."""

from __future__ import annotations

import asyncio
import socket

import pytest

from moldau.broker.server import flow_control as module
from moldau.broker.server.call import Call
from moldau.broker.server.connection import Connection
from tests.support.drivers.connections import (
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

LONG_MS = 3_600_000


async def muted(
    client: socket.socket, recorder: Recorder, connections: set[Connection], ms: int
) -> Connection:
    """A connection that is muted after its first request; that one is answered."""
    await send(client, framed(request(1)))
    await recorder.more_than(0)
    (connection,) = connections
    connection.mute(ms)
    answer(recorder.calls[0])
    await exactly(client, 8)  # the reply goes out all the same
    return connection


async def test_requests_wait_until_the_time_is_over() -> None:
    recorder = Recorder()
    async with served(recorder) as (client, connections):
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await muted(client, recorder, connections, 200)
        await send(client, framed(request(2), request(3)))
        await recorder.more_than(2)
        assert loop.time() - begun >= 0.19
        for call in recorder.calls[1:]:
            answer(call)
        await exactly(client, 16)


async def test_a_longer_mute_counts_and_a_shorter_one_does_not() -> None:
    recorder = Recorder()
    async with served(recorder) as (client, connections):
        loop = asyncio.get_running_loop()
        begun = loop.time()
        connection = await muted(client, recorder, connections, 50)
        connection.mute(300)
        connection.mute(1)
        await send(client, framed(request(2)))
        await recorder.more_than(1)
        assert loop.time() - begun >= 0.29


async def test_holding_and_muting_are_independent() -> None:
    recorder = Recorder()
    async with served(recorder) as (client, connections):
        connection = await muted(client, recorder, connections, 50)
        connection.hold()
        await send(client, framed(request(2)))
        await asyncio.sleep(0.15)
        assert len(recorder.calls) == 1
        connection.mute(LONG_MS)
        connection.resume()
        await asyncio.sleep(0.05)
        assert len(recorder.calls) == 1
        connection._muted_until = 0.0
        connection._check_mute()
        await recorder.more_than(1)


async def test_a_muted_connection_is_hardly_read_from() -> None:
    recorder = Recorder()
    async with served(recorder) as (client, connections):
        await muted(client, recorder, connections, LONG_MS)
        sending = asyncio.ensure_future(
            send(client, framed(*(request(n, MIB) for n in range(2, 80))))
        )
        await asyncio.sleep(0.2)
        assert not sending.done()  # the client's socket is full
        (connection,) = connections
        assert len(connection._backlog) <= 2
        sending.cancel()


async def test_a_client_that_hangs_up_while_it_is_muted_is_noticed() -> None:
    recorder = Recorder()
    async with served(recorder) as (client, connections):
        await muted(client, recorder, connections, LONG_MS)
        client.close()
        await until(lambda: not connections)


async def test_what_was_sent_before_hanging_up_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what was not read yet when the client hung up: producers may want no replies."""
    monkeypatch.setattr(module, "MUTED_CHECK_S", 0.05)
    recorder = Recorder()
    async with served(recorder) as (client, connections):
        await muted(client, recorder, connections, LONG_MS)
        await send(client, framed(*(request(n, 5_000) for n in range(2, 6))))
        await asyncio.sleep(0.1)
        assert len(recorder.calls) == 1
        client.close()
        await until(lambda: not connections)
        assert len(recorder.calls) == 5


async def test_requests_that_mute_again_lose_nothing_behind_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of them does: those that were received already wait, and so does the client's end."""
    monkeypatch.setattr(module, "MUTED_CHECK_S", 0.02)
    served_frames: list[Call] = []

    def dispatch(call: Call, frame: bytearray) -> None:
        served_frames.append(call)
        call.connection.mute(LONG_MS)
        call.no_reply()

    async with served(dispatch) as (client, connections):
        await send(client, framed(*(request(n, 5_000) for n in range(8))))
        await until(lambda: bool(served_frames))
        client.close()
        await until(lambda: not connections)
        assert len(served_frames) == 8


async def test_draining_ends_a_mute() -> None:
    recorder = Recorder()
    async with served(recorder) as (client, connections):
        connection = await muted(client, recorder, connections, LONG_MS)
        connection.drain()
        assert await asyncio.get_running_loop().sock_recv(client, 1) == b""
        await until(lambda: not connections)
        assert connection._muted_timer is None
