"""Client connections of the router against workers that answer when and how they like.

The workers here are in the test's own event loop: they take any time to answer, in pieces of any
size, and hang up. What a client sees must not depend on that: every request answered, in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from broker.placement import leader_of, owner_of
from broker.settings.processes import Endpoint
from broker.wire.apis import APIS
from broker.wire.frame import (
    PEER_ADDRESS,
    read_request_header,
    read_response,
    request_frame,
    response_frame,
)
from broker.wire.messages.api_versions import ApiVersionsRequest
from broker.wire.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from broker.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from broker.wire.messages.metadata import MetadataRequest
from broker.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from router.client_connection import Client
from router.state import Hub
from router.worker_connection import Workers

WORKERS = 3
HEARTBEAT, DESCRIBE, VERSIONS, METADATA, PRODUCE = APIS[12], APIS[15], APIS[18], APIS[3], APIS[0]
Behaviour = Callable[["FakeWorker", bytes], Coroutine[Any, Any, bytes | None]]


async def answer(worker: FakeWorker, frame: bytes) -> bytes | None:
    """A reply of any size that names the request; described groups as they are told."""
    header = read_request_header(frame)
    if header.api is DESCRIBE:
        request, _ = DESCRIBE.request_codec(header.api_version).decode(frame, header.body_at)
        told = [DescribedGroup(group_id=each) for each in request.groups]
        parts = response_frame(
            DESCRIBE, header.api_version, header.correlation_id, DescribeGroupsResponse(0, told)
        )
        return b"".join(parts)
    body = struct.pack(">i", header.correlation_id) + worker.rng.randbytes(worker.rng.choice(SIZES))
    return struct.pack(">i", len(body)) + body


SIZES = (0, 1, 50, 3000, 300_000)


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
                    header = read_request_header(frame)
                    if header.api_key == PEER_ADDRESS:
                        self.peers.append(header.client_id)
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
        links = Workers(self.paths)
        watching = [asyncio.ensure_future(links.watch(index)) for index in range(WORKERS)]
        await links.until_up(10)
        brokers = [Endpoint(index, "localhost", 1000 + index) for index in range(WORKERS)]
        self.hub = Hub(links, brokers, 100 << 20)
        front = await loop.create_unix_server(lambda: Client(self.hub), self._front)
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
            while self.hub.clients or self.hub.tasks:  # noqa: ASYNC110
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


@pytest.mark.parametrize("seed", range(8))
def test_every_request_is_answered_in_order(short_tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    requests = [some_request(rng, number) for number in range(400)]

    async def run() -> None:
        async with Stage(short_tmp_path, answer, seed).open() as stage:

            async def send() -> None:
                data = b"".join(requests)
                while data:
                    step = rng.choice((1, 7, 500, 5000, 1_000_000))
                    stage.writer.write(data[:step])
                    data = data[step:]
                    await stage.writer.drain()
                    await asyncio.sleep(0)

            sending = asyncio.ensure_future(send())
            for number, request in enumerate(requests):
                reply = await asyncio.wait_for(stage.receive(), 30)
                assert struct.unpack_from(">i", reply) == (number,)
                header = read_request_header(request[4:])
                if header.api is DESCRIBE:
                    asked, _ = DESCRIBE.request_codec(5).decode(request, 4 + header.body_at)
                    _, told = read_response(DESCRIBE, 5, reply)
                    assert isinstance(told, DescribeGroupsResponse)
                    assert [each.group_id for each in told.groups] == asked.groups
            await sending
            seen = {frame for worker in stage.workers for frame in worker.frames}
            # Untouched, but for those that were split.
            for request in requests:
                key = struct.unpack_from(">h", request, 4)[0]
                if key in (HEARTBEAT.key, METADATA.key, PRODUCE.key):
                    assert request[4:] in seen
            for worker in stage.workers:
                assert worker.peers == ["unix"]  # told once, on one connection

    uvloop.run(run())


def test_requests_reach_a_worker_in_the_order_they_were_sent(short_tmp_path: Path) -> None:
    rng = random.Random(5)
    requests = [some_request(rng, number) for number in range(300)]

    async def run() -> None:
        async with Stage(short_tmp_path, answer, 5).open() as stage:
            stage.writer.write(b"".join(requests))
            for _ in requests:
                await asyncio.wait_for(stage.receive(), 30)
            for worker in stage.workers:
                numbers = [read_request_header(frame).correlation_id for frame in worker.frames]
                assert numbers == sorted(numbers)

    uvloop.run(run())


def test_a_worker_that_hangs_up_takes_only_its_own_along(short_tmp_path: Path) -> None:
    async def hang_up(worker: FakeWorker, frame: bytes) -> bytes | None:
        return None if worker.index == 1 else await answer(worker, frame)

    async def run() -> None:
        async with Stage(short_tmp_path, hang_up, 1).open() as stage:
            rng = random.Random(1)
            groups = [group_of(worker, rng) for worker in (0, 1, 2)]
            # Merged answers say what they can.
            stage.writer.write(request_frame(DESCRIBE, 5, 1, "c", DescribeGroupsRequest(groups)))
            _, told = read_response(DESCRIBE, 5, await asyncio.wait_for(stage.receive(), 10))
            assert isinstance(told, DescribeGroupsResponse)
            assert [each.error_code for each in told.groups] == [0, 15, 0]
            # A request of its own cannot be answered: what was answered before still comes.
            stage.writer.write(
                request_frame(HEARTBEAT, 4, 2, "c", HeartbeatRequest(groups[0]))
                + request_frame(HEARTBEAT, 4, 3, "c", HeartbeatRequest(groups[2]))
            )
            for number in (2, 3):
                assert struct.unpack_from(">i", await stage.receive()) == (number,)
            stage.writer.write(request_frame(HEARTBEAT, 4, 4, "c", HeartbeatRequest(groups[1])))
            assert await asyncio.wait_for(stage.reader.read(), 10) == b""

    uvloop.run(run())


def test_produce_to_several_leaders_overtakes_nothing(short_tmp_path: Path) -> None:
    """Workers that take their time: what is appended to a partition keeps its order."""
    log: dict[int, list[int]] = {}

    async def append(worker: FakeWorker, frame: bytes) -> bytes | None:
        # The one that all requests go to later on is far ahead of the others.
        is_home = worker.index == leader_of("t", 0, WORKERS)
        await asyncio.sleep(0 if is_home else worker.rng.random() / 100)
        header = read_request_header(frame)
        request, _ = PRODUCE.request_codec(9).decode(frame, header.body_at)
        for data in request.topic_data[0].partition_data:
            log.setdefault(data.index, []).append(header.correlation_id)
        return struct.pack(">ii", 4, header.correlation_id)

    def request(rng: random.Random, number: int) -> bytes:
        indexes = rng.sample(range(6), rng.choice((1, 1, 2, 3)) if number > 50 else 1)
        data = [PartitionProduceData(index, rng.randbytes(20)) for index in indexes]
        produce = ProduceRequest(None, -1, 1000, [TopicProduceData("t", partition_data=data)])
        return request_frame(PRODUCE, 9, number, "c", produce)

    async def run() -> None:
        async with Stage(short_tmp_path, append, 2).open() as stage:
            rng = random.Random(2)
            stage.writer.write(b"".join(request(rng, number) for number in range(200)))
            for number in range(200):
                reply = await asyncio.wait_for(stage.receive(), 30)
                assert struct.unpack(">i", reply) == (number,)
            assert all(worker.frames for worker in stage.workers)
            for numbers in log.values():
                assert numbers == sorted(numbers)

    uvloop.run(run())


def test_nothing_is_left_when_a_client_goes(short_tmp_path: Path) -> None:
    async def never(worker: FakeWorker, frame: bytes) -> bytes | None:
        await asyncio.sleep(3600)
        return None

    async def run() -> None:
        async with Stage(short_tmp_path, never, 3).open() as stage:
            rng = random.Random(3)
            for worker in range(WORKERS):
                heartbeat = HeartbeatRequest(group_of(worker, rng))
                stage.writer.write(request_frame(HEARTBEAT, 4, worker, "c", heartbeat))
            while not all(worker.frames for worker in stage.workers):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            stage.writer.close()
            async with asyncio.timeout(10):
                while stage.hub.clients:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            for task in asyncio.all_tasks():  # the workers', which would sleep on
                if "serve" in repr(task.get_coro()):
                    task.cancel()

    uvloop.run(run())


def produce_to(partitions: list[int], number: int) -> bytes:
    data = [PartitionProduceData(index, b"x" * 20) for index in partitions]
    produce = ProduceRequest(None, -1, 1000, [TopicProduceData("t", partition_data=data)])
    return request_frame(PRODUCE, 9, number, "c", produce)


def test_requests_that_begin_alike_go_where_they_belong(short_tmp_path: Path) -> None:
    """One at a time, many like the one before and some not; both as they are sent and in pieces."""

    async def run() -> None:
        async with Stage(short_tmp_path, answer, 4).open() as stage:
            rng = random.Random(4)
            groups = [group_of(worker, rng) for worker in (0, 1, 2)]
            expected: list[list[int]] = [[] for _ in range(WORKERS)]
            for number in range(300):
                at = rng.choice((0, 0, 0, 1, 2))
                if number % 2:
                    owner = at
                    heartbeat = HeartbeatRequest(groups[at], number, "m" * rng.randrange(40))
                    frame = request_frame(HEARTBEAT, 4, number, "c", heartbeat)
                else:
                    owner = leader_of("t", at, WORKERS)
                    frame = produce_to([at], number)
                expected[owner].append(number)
                cut = rng.randrange(len(frame)) if rng.random() < 0.2 else 0
                if cut:
                    stage.writer.write(frame[:cut])
                    await asyncio.sleep(0.001)
                stage.writer.write(frame[cut:])
                reply = await asyncio.wait_for(stage.receive(), 10)
                assert struct.unpack_from(">i", reply) == (number,)
            for worker, numbers in zip(stage.workers, expected, strict=True):
                got = [read_request_header(frame).correlation_id for frame in worker.frames]
                assert got == numbers
                assert worker.peers == ["unix"]  # one connection

    uvloop.run(run())


def test_a_produce_to_several_leaders_changes_where_the_next_ones_go(short_tmp_path: Path) -> None:
    async def run() -> None:
        async with Stage(short_tmp_path, answer, 6).open() as stage:
            away = next(index for index in range(6) if leader_of("t", index, WORKERS) != HOME)
            for number, partitions in enumerate(([away], [away], [0, 1, 2], [away], [away])):
                stage.writer.write(produce_to(partitions, number))
                reply = await asyncio.wait_for(stage.receive(), 10)
                assert struct.unpack_from(">i", reply) == (number,)
            home, leader = stage.workers[HOME], stage.workers[leader_of("t", away, WORKERS)]
            assert numbers_of(leader) == [0, 1]
            assert numbers_of(home) == [2, 3, 4]

    uvloop.run(run())


HOME = leader_of("t", 0, WORKERS)


def numbers_of(worker: FakeWorker) -> list[int]:
    return [read_request_header(frame).correlation_id for frame in worker.frames]


def test_who_hung_up_is_not_sent_what_went_there_before(short_tmp_path: Path) -> None:
    """An idle connection to a worker ends: the next request is sent to whoever is there."""

    async def run() -> None:
        async with Stage(short_tmp_path, answer, 8).open() as stage:
            rng = random.Random(8)
            group, partition = group_of(HOME, rng), 0
            writers: list[asyncio.StreamWriter] = stage.workers[HOME].writers
            for number in range(0, 4, 2):
                stage.writer.write(produce_to([partition], number))
                await asyncio.wait_for(stage.receive(), 10)
                heartbeat = request_frame(HEARTBEAT, 4, number + 1, "c", HeartbeatRequest(group))
                stage.writer.write(heartbeat)
                await asyncio.wait_for(stage.receive(), 10)
            stage.servers[HOME].close()
            for writer in writers:
                writer.close()
            async with asyncio.timeout(10):
                # Both connections: the one that tells who is there, and this client's own.
                (client,) = stage.hub.clients
                while stage.hub.workers.is_up[HOME] or client.leads_to(HOME):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            stage.writer.write(produce_to([partition], 4))
            assert struct.unpack_from(">i", await asyncio.wait_for(stage.receive(), 10)) == (4,)
            stage.writer.write(request_frame(HEARTBEAT, 4, 5, "c", HeartbeatRequest(group)))
            _, refused = read_response(HEARTBEAT, 4, await asyncio.wait_for(stage.receive(), 10))
            assert isinstance(refused, HeartbeatResponse)
            assert refused.error_code == 15
            assert numbers_of(stage.workers[HOME]) == [0, 1, 2, 3]

    uvloop.run(run())


def test_a_part_that_cannot_be_read_is_told_as_that_of_a_worker_that_is_away(
    short_tmp_path: Path,
) -> None:
    async def garble(worker: FakeWorker, frame: bytes) -> bytes | None:
        reply = await answer(worker, frame)
        if worker.index != 1:
            return reply
        # One group is announced, and nothing follows.
        return struct.pack(">iibib", 10, read_request_header(frame).correlation_id, 0, 0, 2)

    async def run() -> None:
        async with Stage(short_tmp_path, garble, 1).open() as stage:
            rng = random.Random(1)
            groups = [group_of(worker, rng) for worker in (0, 1, 2)]
            stage.writer.write(request_frame(DESCRIBE, 5, 1, "c", DescribeGroupsRequest(groups)))
            _, told = read_response(DESCRIBE, 5, await asyncio.wait_for(stage.receive(), 10))
            assert isinstance(told, DescribeGroupsResponse)
            assert [each.error_code for each in told.groups] == [0, 15, 0]

    uvloop.run(run())


def test_a_connection_is_idle_when_nothing_is_asked_for_long(short_tmp_path: Path) -> None:
    async def run() -> None:
        async with Stage(short_tmp_path, answer, 9).open() as stage:
            beat = request_frame(HEARTBEAT, 4, 1, "c", HeartbeatRequest("g"))
            stage.writer.write(beat)
            await asyncio.wait_for(stage.receive(), 10)
            (client,) = stage.hub.clients
            assert not client.is_idle(1000, 60)  # active since nobody has looked before
            assert not client.is_idle(1050, 60)
            stage.writer.write(beat)
            await asyncio.wait_for(stage.receive(), 10)
            assert not client.is_idle(1061, 60)
            assert not client.is_idle(1121, 60)
            assert client.is_idle(1122, 60)
            client.turns.append(b"")  # owed to it
            assert not client.is_idle(2000, 60)
            client.turns.clear()

    uvloop.run(run())
