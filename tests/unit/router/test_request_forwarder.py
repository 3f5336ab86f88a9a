"""Requests of one client without sockets: turns of the event loop, pieces, and what is kept."""

from __future__ import annotations

import asyncio
import random
import struct

import pytest

from moldau.broker.settings.processes import Endpoint, Listener
from moldau.broker.wire.apis import APIS, ApiKey
from moldau.broker.wire.frame import LENGTH, request_frame
from moldau.broker.wire.messages.api_versions import ApiVersionsRequest
from moldau.broker.wire.messages.heartbeat import HeartbeatRequest
from moldau.router.client_connection import ClientConnection
from moldau.router.reply_queue import MAX_UNANSWERED
from moldau.router.request_forwarder import MAX_PER_TURN, SERVED_HERE
from moldau.router.state import RouterState
from moldau.router.worker_connections import WorkerConnection
from moldau.router.workers import Workers

HEARTBEAT, VERSIONS = APIS[ApiKey.HEARTBEAT], APIS[ApiKey.API_VERSIONS]
HERE_PER_TURN = MAX_PER_TURN // SERVED_HERE  # requests that the router answers itself


class FakeTransport:
    """A client that keeps what is written to it."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.reading = True
        self.closed = False

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return ("10.0.0.1", 1)

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self.received += data

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True


class Unconnected(RouterState):
    """Workers that are up; connections to them are made by the test."""

    def __init__(self) -> None:
        workers = Workers(["/nowhere/0"])
        workers.is_up[0] = True
        super().__init__(workers, lambda _: [Endpoint(0, "localhost", 9092)], 1 << 20)
        self.opened: list[WorkerConnection] = []

    def connect(self, connection: WorkerConnection) -> None:
        self.opened.append(connection)


class Served:
    """A client connection, and a connection to its only worker once there is one."""

    def __init__(self) -> None:
        self.state = Unconnected()
        self.client = ClientConnection(self.state, set(), Listener())
        self.transport = FakeTransport()
        self.client.connection_made(self.transport)  # type: ignore[arg-type]
        self.at_worker = FakeTransport()

    def connect(self) -> WorkerConnection:
        (connection,) = self.state.opened
        connection.connection_made(self.at_worker)  # type: ignore[arg-type]
        return connection


def numbers_in(data: bytes | bytearray, at: int) -> list[int]:
    """The correlation ids in a stream of frames, which stand `at` bytes into each."""
    found = []
    start = 0
    while start < len(data):
        found.append(struct.unpack_from(">i", data, start + 4 + at)[0])
        start += 4 + LENGTH.unpack_from(data, start)[0]
    return found


def requested(data: bytes | bytearray) -> list[int]:
    """The numbers of the requests a worker has received, behind the client's address."""
    return numbers_in(data, 4)[1:]


def versions(numbers: range) -> bytes:
    return b"".join(
        request_frame(VERSIONS, 3, number, "c", ApiVersionsRequest()) for number in numbers
    )


def heartbeats(numbers: range) -> bytes:
    return b"".join(
        request_frame(HEARTBEAT, 4, number, "c", HeartbeatRequest("g", 1, "m"))
        for number in numbers
    )


def reply(number: int) -> bytes:
    return struct.pack(">iib", 5, number, 0)


async def test_other_connections_get_their_turn_however_much_one_sends() -> None:
    """Requests that the router answers itself would keep the event loop for seconds."""
    served = Served()
    count = 5 * HERE_PER_TURN // 2
    served.client.data_received(versions(range(count)))
    for turn in (1, 2):
        assert numbers_in(served.transport.received, 0) == list(range(turn * HERE_PER_TURN))
        assert not served.transport.reading
        await asyncio.sleep(0)
    assert numbers_in(served.transport.received, 0) == list(range(count))
    assert served.transport.reading


async def test_replies_do_not_hasten_the_next_turn() -> None:
    served = Served()
    served.client.data_received(heartbeats(range(1)))
    worker = served.connect()
    served.client.data_received(heartbeats(range(1, 2 * MAX_PER_TURN)))
    first = list(range(1 + MAX_PER_TURN))
    assert requested(served.at_worker.received) == first
    worker.data_received(reply(0))
    worker.data_received(reply(1))
    assert requested(served.at_worker.received) == first
    await asyncio.sleep(0)
    assert requested(served.at_worker.received) == list(range(2 * MAX_PER_TURN))
    assert served.transport.reading


async def test_a_client_that_was_closed_has_no_further_turn() -> None:
    served = Served()
    served.client.data_received(versions(range(2 * HERE_PER_TURN)))
    served.client.abort()
    await asyncio.sleep(0)
    assert len(numbers_in(served.transport.received, 0)) == HERE_PER_TURN


async def test_a_client_that_does_not_read_its_replies_has_no_further_turn() -> None:
    served = Served()
    served.client.data_received(versions(range(2 * HERE_PER_TURN)))
    served.client.pause_writing()
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(numbers_in(served.transport.received, 0)) == HERE_PER_TURN
    assert not served.transport.reading
    served.client.resume_writing()
    assert len(numbers_in(served.transport.received, 0)) == 2 * HERE_PER_TURN
    assert served.transport.reading


async def test_requests_beyond_the_unanswered_ones_wait_for_replies() -> None:
    served = Served()
    served.client.data_received(heartbeats(range(1)))
    worker = served.connect()
    total = MAX_UNANSWERED + 100
    served.client.data_received(heartbeats(range(1, total)))
    for _ in range(4):
        await asyncio.sleep(0)
    assert requested(served.at_worker.received) == list(range(MAX_UNANSWERED))
    assert not served.transport.reading
    for number in range(100):
        worker.data_received(reply(number))
        sent = requested(served.at_worker.received)
        assert sent == list(range(MAX_UNANSWERED + number + 1))
    worker.data_received(reply(100))
    assert served.transport.reading


@pytest.mark.parametrize("seed", range(5))
async def test_what_a_worker_receives_does_not_depend_on_the_pieces(seed: int) -> None:
    rng = random.Random(seed)
    served = Served()
    served.client.data_received(heartbeats(range(1)))
    served.connect()
    data = heartbeats(range(1, 200))
    while data:
        size = rng.choice((1, 2, 3, 4, 5, 11, 100, 3000))
        served.client.data_received(data[:size])
        data = data[size:]
    assert requested(served.at_worker.received) == list(range(200))


@pytest.mark.parametrize("sent", [LENGTH.pack(7), LENGTH.pack(2 << 20), LENGTH.pack(-1)])
async def test_a_size_that_no_request_has_closes_the_connection(sent: bytes) -> None:
    served = Served()
    served.client.data_received(versions(range(1)) + sent)
    assert served.transport.closed
    assert served.client.is_closed
