"""A worker's connections behind TLS: all receive into one shared buffer (wire/framing.py).

That is right as long as the event loop fills it and hands it over within one call, for one
connection at a time, which is uvloop's business and not in its documentation.
"""

import asyncio
import os
import random
import ssl
import struct
import zlib
from typing import ClassVar

import psutil  # type: ignore[import-untyped]
import pytest

from moldau.broker.server.call import Call
from moldau.broker.server.connection import Connection
from moldau.broker.server.limits import Budget
from moldau.broker.settings.processes import Listener, TlsSettings
from moldau.broker.wire.batch import Buffer
from tests.support.brokers.certificates import Certificates
from tests.support.drivers.connections import MAX_FRAME, MIB, framed, request, until
from tests.support.drivers.tls_server import connected, in_thread, tls_served

CLIENTS, REQUESTS = 8, 60
SIZES = (10, 100, 5_000, 16_384, 70_000, 300_000)


class Watched(Connection):
    filled_by: ClassVar[Connection | None] = None
    others: ClassVar[list[str]] = []

    def get_buffer(self, sizehint: int) -> memoryview:
        Watched.filled_by = self
        return super().get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        if Watched.filled_by is not self:
            Watched.others.append("another connection was given the buffer meanwhile")
        super().buffer_updated(nbytes)


def reply_with_checksum(call: Call, frame: bytearray) -> None:
    reply = struct.pack(">iiI", 8, call.header.correlation_id, zlib.crc32(frame))
    asyncio.get_running_loop().call_soon(lambda: call.reply_with([reply]))


async def test_frames_of_many_connections_do_not_mix(certificates: Certificates) -> None:
    tls = TlsSettings(keystore=str(certificates.server))
    listener = Listener(name="SSL", protocol="SSL", tls=tls)
    connections: set[Connection] = set()
    budget = Budget(64 * MIB, 16 * MIB)

    def talk(seed: int, address: tuple[str, int]) -> list[int]:
        """Frames in pieces that fit neither TLS records nor frames; the checksums that come."""
        rng = random.Random(seed)
        frames = [request(1000 * seed + n, rng.choice(SIZES)) for n in range(REQUESTS)]
        data = memoryview(framed(*frames))
        with connected(address, certificates.ca) as client:
            client.settimeout(60)
            while data:
                size = rng.choice((1, 3, 1000, 20_000, 400_000))
                client.sendall(data[:size])
                data = data[size:]
            answers = b""
            while len(answers) < 12 * REQUESTS:
                piece = client.recv(65536)
                assert piece, "closed"
                answers += piece
        found = [struct.unpack_from(">iiI", answers, 12 * n) for n in range(REQUESTS)]
        assert [each[1] for each in found] == [1000 * seed + n for n in range(REQUESTS)]
        assert [each[2] for each in found] == [zlib.crc32(frame) for frame in frames]
        return [each[2] for each in found]

    async with tls_served(
        lambda: Watched(reply_with_checksum, budget, connections, MAX_FRAME, listener), tls
    ) as served:
        await asyncio.gather(
            *(in_thread(lambda s=seed: talk(s, served.address)) for seed in range(CLIENTS))  # type: ignore[misc]
        )
        for connection in list(connections):
            connection.abort()
        await asyncio.sleep(0.01)
    assert not Watched.others


# --- clients that do not read ---

READERS, REPLY = 8, 16 * MIB
CONTENT = os.urandom(MIB)


def reply_of(correlation_id: int) -> list[Buffer]:
    """Large, and all of it memory that replies share, as they do with the tail cache."""
    head = struct.pack(">ii", 4 + REPLY, correlation_id)
    return [head, *([memoryview(CONTENT)] * (REPLY // MIB))]


def reply_large(call: Call, frame: bytearray) -> None:
    asyncio.get_running_loop().call_soon(
        lambda: call.reply_with(reply_of(call.header.correlation_id))
    )


def read_reply(client: ssl.SSLSocket, correlation_id: int) -> None:
    expected = b"".join(reply_of(correlation_id))
    got = bytearray()
    while len(got) < len(expected):
        piece = client.recv(MIB)
        assert piece, f"closed after {len(got)} bytes"
        got += piece
    assert got == expected


async def test_replies_that_are_not_read_are_counted_and_not_copied(
    certificates: Certificates,
) -> None:
    tls = TlsSettings(keystore=str(certificates.server))
    listener = Listener(name="SSL", protocol="SSL", tls=tls)
    connections: set[Connection] = set()
    budget = Budget(1024 * MIB, 16 * MIB)
    process = psutil.Process()

    async with tls_served(
        lambda: Connection(reply_large, budget, connections, MAX_FRAME, listener), tls
    ) as served:
        clients = [
            await in_thread(lambda: connected(served.address, certificates.ca))
            for _ in range(READERS)
        ]
        before = process.memory_info().rss
        for client in clients:
            client.sendall(framed(request(1)))
        # The kernel takes some of each.
        await until(lambda: budget.held > READERS * REPLY // 2)
        assert process.memory_info().rss - before < READERS * REPLY // 2
        for number, client in enumerate(clients):
            client.settimeout(60)
            client.sendall(framed(request(2)))
            if number % 2:
                await in_thread(lambda c=client: read_reply(c, 1))  # type: ignore[misc]
                await in_thread(lambda c=client: read_reply(c, 2))  # type: ignore[misc]
        await until(lambda: budget.held <= READERS // 2 * REPLY)
        for client in clients:
            client.close()
        await until(lambda: not connections)
        assert budget.held == 0


@pytest.mark.parametrize("how", ["drain", "end"])
async def test_a_connection_that_ends_while_replies_wait(
    certificates: Certificates, how: str
) -> None:
    """Drained, the client gets all of them; ended, what was written, and no more."""
    tls = TlsSettings(keystore=str(certificates.server))
    listener = Listener(name="SSL", protocol="SSL", tls=tls)
    connections: set[Connection] = set()
    budget = Budget(1024 * MIB, 16 * MIB)

    def read_to_end(client: ssl.SSLSocket) -> int:
        count = 0
        while piece := client.recv(MIB):
            count += len(piece)
        return count

    async with tls_served(
        lambda: Connection(reply_large, budget, connections, MAX_FRAME, listener), tls
    ) as served:
        client = await in_thread(lambda: connected(served.address, certificates.ca))
        client.settimeout(60)
        client.sendall(framed(request(1), request(2)))
        await until(lambda: budget.held > REPLY // 2)
        (connection,) = connections
        getattr(connection, how)()
        got = await in_thread(lambda: read_to_end(client))
        client.close()
        whole = 2 * sum(map(len, reply_of(1)))
        assert got == whole if how == "drain" else got < whole
        await until(lambda: not connections)
        assert budget.held == 0
