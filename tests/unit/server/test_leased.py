"""Connections of a worker with a lease: none is served when it is over, except for health."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from moldau.broker.net.lease import Lease, boot_ns
from moldau.broker.private.table import METRICS
from moldau.broker.server.call import Call
from moldau.broker.server.connection import Connection
from moldau.broker.server.leased import leased
from moldau.broker.server.limits import Budget
from moldau.broker.settings.processes import Listener
from moldau.broker.wire.advertised import PING
from tests.support.drivers.connections import (
    MAX_FRAME,
    MIB,
    Recorder,
    answer,
    exactly,
    framed,
    request,
    send,
    until,
)

HOUR_NS = 3_600_000_000_000
HEARTBEAT = struct.pack(">hhih", 12, 0, 7, -1)


@asynccontextmanager
async def served(
    lease: Lease, dispatch: Recorder, path: Path | None = None
) -> AsyncIterator[tuple[socket.socket, set[Connection]]]:
    """A client of a leased connection, over the unix socket at `path` or over TCP."""
    loop = asyncio.get_running_loop()
    connections: set[Connection] = set()
    make = leased(lease)
    listener = Listener() if path is None else None

    def accept() -> Connection:
        return make(dispatch, Budget(64 * MIB, 16 * MIB), connections, MAX_FRAME, listener)

    if path is None:
        server = await loop.create_server(accept, "127.0.0.1", 0)
        client = socket.socket()
    else:
        server = await loop.create_unix_server(accept, str(path))
        client = socket.socket(socket.AF_UNIX)
    client.setblocking(False)
    where = server.sockets[0].getsockname()
    await loop.sock_connect(client, where)
    try:
        yield client, connections
    finally:
        client.close()
        server.close()
        for connection in list(connections):
            connection.abort()
        await until(lambda: not connections)


def lasting() -> Lease:
    lease = Lease(9_000)
    lease.extend(boot_ns() + HOUR_NS)
    return lease


async def is_closed(client: socket.socket) -> bool:
    try:
        return await asyncio.get_running_loop().sock_recv(client, 1) == b""
    except ConnectionError:
        return True


async def test_clients_are_served_while_it_lasts() -> None:
    calls = Recorder()
    async with served(lasting(), calls) as (client, _):
        await send(client, framed(request(5)))
        await calls.more_than(0)
        answer(calls.calls[0])
        assert await exactly(client, 8) == struct.pack(">ii", 4, 5)


async def test_a_request_that_comes_when_it_is_over_closes_the_connection() -> None:
    lease, calls = lasting(), Recorder()
    async with served(lease, calls) as (client, connections):
        await until(lambda: bool(connections))
        lease.lose()
        await send(client, framed(HEARTBEAT))
        assert await is_closed(client)
        assert not calls.calls


async def test_an_answer_that_is_ready_when_it_is_over_is_not_given() -> None:
    lease, calls = lasting(), Recorder()
    async with served(lease, calls) as (client, _):
        await send(client, framed(HEARTBEAT))
        await calls.more_than(0)
        lease.lose()
        answer(calls.calls[0])
        assert await is_closed(client)


async def test_new_clients_are_turned_away_until_it_is_renewed() -> None:
    lease, calls = Lease(9_000), Recorder()
    async with served(lease, calls) as (client, _):
        assert await is_closed(client)
    lease.renewed(lease.now())
    async with served(lease, calls) as (client, _):
        await send(client, framed(HEARTBEAT))
        await calls.more_than(0)


async def test_pings_and_reports_over_the_unix_socket_are_answered_always(
    short_tmp_path: Path,
) -> None:
    calls = Recorder()
    async with served(Lease(9_000), calls, short_tmp_path / "socket") as (client, _):
        await send(client, PING + METRICS.request(None))
        await calls.more_than(1)
        for call in calls.calls:
            answer(call)
        assert await exactly(client, 16)
        await send(client, framed(HEARTBEAT))  # nothing else, not even of the operator
        assert await is_closed(client)
        assert len(calls.calls) == 2


async def test_requests_over_the_unix_socket_are_served_while_it_lasts(
    short_tmp_path: Path,
) -> None:
    lease, calls = lasting(), Recorder()
    async with served(lease, calls, short_tmp_path / "socket") as (client, _):
        await send(client, framed(HEARTBEAT))
        await calls.more_than(0)
        call: Call = calls.calls[0]
        answer(call)
        assert await exactly(client, 8) == struct.pack(">ii", 4, 7)
