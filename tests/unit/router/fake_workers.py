"""Workers of a test's own event loop behind a router connection, and requests to send to them.

They take any time to reply, in pieces of any size, and hang up. What a client sees must not depend
on that: every request gets its reply, in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

from moldau.broker.placement import leader_of, owner_of
from moldau.broker.private.table import PREAMBLE
from moldau.broker.settings.processes import Endpoint
from moldau.broker.wire.advertised import PING
from moldau.broker.wire.apis import APIS, ApiKey
from moldau.broker.wire.frame import read_request_header, request_frame, response_frame
from moldau.broker.wire.messages.api_versions import ApiVersionsRequest
from moldau.broker.wire.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from moldau.broker.wire.messages.heartbeat import HeartbeatRequest
from moldau.broker.wire.messages.metadata import MetadataRequest
from moldau.broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from moldau.router.client_connection import ClientConnection
from moldau.router.state import RouterState
from moldau.router.workers import Workers

WORKERS = 3
HEARTBEAT, DESCRIBE, VERSIONS, METADATA, PRODUCE = (
    APIS[ApiKey.HEARTBEAT],
    APIS[ApiKey.DESCRIBE_GROUPS],
    APIS[ApiKey.API_VERSIONS],
    APIS[ApiKey.METADATA],
    APIS[ApiKey.PRODUCE],
)
# Gets what a connection produces after a request to several leaders.
HOME = leader_of("t", 0, WORKERS)
SIZES = (0, 1, 50, 3000, 300_000)  # of replies
Behaviour = Callable[["FakeWorker", bytes], Coroutine[Any, Any, bytes | None]]


async def answer(worker: FakeWorker, frame: bytes) -> bytes | None:
    """A reply of any size that names the request; described groups by their names."""
    header = read_request_header(frame)
    if header.api is DESCRIBE:
        request, _ = DESCRIBE.request_codec(header.api_version).decode(frame, header.body_at)
        described = [DescribedGroup(group_id=each) for each in request.groups]
        parts = response_frame(
            DESCRIBE,
            header.api_version,
            header.correlation_id,
            DescribeGroupsResponse(0, described),
        )
        return b"".join(parts)
    body = struct.pack(">i", header.correlation_id) + worker.rng.randbytes(worker.rng.choice(SIZES))
    return struct.pack(">i", len(body)) + body


class FakeWorker:
    """Serves a unix socket; `behave` makes the reply to a frame, or None to hang up."""

    def __init__(self, index: int, behave: Behaviour, seed: int) -> None:
        self.index = index
        self.rng = random.Random(f"{seed} {index}")
        self.frames: list[bytes] = []
        self.peers: list[str | None] = []
        self.writers: list[asyncio.StreamWriter] = []
        self._behave = behave

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            try:
                while True:
                    (size,) = struct.unpack(">i", await reader.readexactly(4))
                    frame = await reader.readexactly(size)
                    if frame == PING[4:]:  # of the router itself
                        writer.write(struct.pack(">i", 4) + frame[4:8])
                        continue
                    header = read_request_header(frame)
                    if header.api_key == PREAMBLE.key:
                        self.peers.append(PREAMBLE.read_request(frame[header.body_at :]).host)
                        continue
                    self.frames.append(frame)
                    reply = await self._behave(self, frame)
                    if reply is None:
                        return
                    await self._write(writer, reply)
            finally:
                writer.close()

    async def _write(self, writer: asyncio.StreamWriter, reply: bytes) -> None:
        while reply:
            step = self.rng.choice((1, 3, 4, 5, 1000, 100_000, 1_000_000))
            writer.write(reply[:step])
            reply = reply[step:]
            if self.rng.random() < 0.2:
                await asyncio.sleep(0)
            if self.rng.random() < 0.02:
                await asyncio.sleep(self.rng.random() / 200)
        await writer.drain()


class Stage:
    """Workers, a router and a connection to it."""

    def __init__(self, directory: Path, behave: Behaviour, seed: int) -> None:
        self.workers = [FakeWorker(index, behave, seed) for index in range(WORKERS)]
        self.paths = [str(directory / f"w{index}.sock") for index in range(WORKERS)]
        self._front = str(directory / "front.sock")

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Stage]:
        loop = asyncio.get_running_loop()
        self.servers = [
            await asyncio.start_unix_server(worker.serve, path)
            for worker, path in zip(self.workers, self.paths, strict=True)
        ]
        workers = Workers(self.paths)
        watching = [asyncio.ensure_future(workers.watch(index)) for index in range(WORKERS)]
        await workers.until_up(10)
        brokers = [Endpoint(index, "localhost", 1000 + index) for index in range(WORKERS)]
        self.state = RouterState(workers, lambda _: brokers, 100 << 20)
        self.clients: set[ClientConnection] = set()
        front = await loop.create_unix_server(
            lambda: ClientConnection(self.state, self.clients, None), self._front
        )
        self.reader, self.writer = await asyncio.open_unix_connection(self._front)
        try:
            yield self
        finally:
            self.writer.close()
            for server in (front, *self.servers):
                server.close()
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
            while self.clients or self.state.connecting:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def receive(self) -> bytes:
        (size,) = struct.unpack(">i", await self.reader.readexactly(4))
        return await self.reader.readexactly(size)


def group_of(worker: int, rng: random.Random) -> str:
    while owner_of(group := f"group-{rng.randrange(10_000)}", WORKERS) != worker:
        pass
    return group


def some_request(rng: random.Random, number: int) -> bytes:
    """A request to one worker, to several, or to the router itself."""
    chance = rng.random()
    if chance < 0.15:
        return request_frame(VERSIONS, 3, number, "c", ApiVersionsRequest())
    if chance < 0.3:
        groups = [group_of(rng.randrange(WORKERS), rng) for _ in range(rng.randrange(5))]
        return request_frame(DESCRIBE, 5, number, "c", DescribeGroupsRequest(groups))
    if chance < 0.4:
        return request_frame(METADATA, 9, number, "c", MetadataRequest([]))
    if chance < 0.5:
        places = [PartitionProduceData(rng.randrange(6), rng.randbytes(rng.choice((9, 400_000))))]
        produce = ProduceRequest(None, -1, 1000, [TopicProduceData("t", partition_data=places)])
        return request_frame(PRODUCE, 9, number, "c", produce)
    heartbeat = HeartbeatRequest(group_of(rng.randrange(WORKERS), rng), number, "m")
    return request_frame(HEARTBEAT, 4, number, "c", heartbeat)


def produce_to(partitions: list[int], number: int) -> bytes:
    data = [PartitionProduceData(index, b"x" * 20) for index in partitions]
    produce = ProduceRequest(None, -1, 1000, [TopicProduceData("t", partition_data=data)])
    return request_frame(PRODUCE, 9, number, "c", produce)


def numbers_of(worker: FakeWorker) -> list[int]:
    return [read_request_header(frame).correlation_id for frame in worker.frames]
