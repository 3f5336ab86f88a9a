"""A client connection of the router: replies in order whatever the workers do, idle or closed."""

from __future__ import annotations

import asyncio
import random
import struct
from pathlib import Path

import pytest

from moldau.broker.private.api import private_frame
from moldau.broker.private.table import PREAMBLE
from moldau.broker.security.identity import Identity, Role
from moldau.broker.wire.frame import read_request_header, read_response, request_frame
from moldau.broker.wire.messages.describe_groups import DescribeGroupsResponse
from moldau.broker.wire.messages.heartbeat import HeartbeatRequest
from moldau.broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from moldau.router.reply_queue import WorkerReplies
from moldau.router.transport import WRITE_HIGH_WATER, PausableTransport
from tests.unit.router.fake_workers import (
    DESCRIBE,
    HEARTBEAT,
    METADATA,
    PRODUCE,
    WORKERS,
    FakeWorker,
    Stage,
    answer,
    group_of,
    some_request,
)


@pytest.mark.parametrize("seed", range(8))
async def test_every_request_is_answered_in_order(short_tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    requests = [some_request(rng, number) for number in range(400)]

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
                _, response = read_response(DESCRIBE, 5, reply)
                assert isinstance(response, DescribeGroupsResponse)
                assert [each.group_id for each in response.groups] == asked.groups
        await sending
        seen = {frame for worker in stage.workers for frame in worker.frames}
        # Untouched, but for those that were split.
        for request in requests:
            key = struct.unpack_from(">h", request, 4)[0]
            if key in (HEARTBEAT.key, METADATA.key, PRODUCE.key):
                assert request[4:] in seen
        for worker in stage.workers:
            assert worker.peers == ["unix"]  # one connection


async def test_requests_reach_a_worker_in_the_order_they_were_sent(short_tmp_path: Path) -> None:
    rng = random.Random(5)
    requests = [some_request(rng, number) for number in range(300)]

    async with Stage(short_tmp_path, answer, 5).open() as stage:
        stage.writer.write(b"".join(requests))
        for _ in requests:
            await asyncio.wait_for(stage.receive(), 30)
        for worker in stage.workers:
            numbers = [read_request_header(frame).correlation_id for frame in worker.frames]
            assert numbers == sorted(numbers)


async def test_what_a_worker_has_not_taken_counts(short_tmp_path: Path) -> None:
    may_go_on = asyncio.Event()

    async def wait(worker: FakeWorker, frame: bytes) -> bytes | None:
        await may_go_on.wait()
        return await answer(worker, frame)

    places = [PartitionProduceData(0, bytes(1 << 20))]
    produce = ProduceRequest(None, -1, 1000, [TopicProduceData("t", partition_data=places)])
    requests = [request_frame(PRODUCE, 9, number, "c", produce) for number in range(2)]
    async with Stage(short_tmp_path, wait, 4).open() as stage:
        frames = stage.state.frames
        stage.writer.write(requests[0] + requests[1][: 800 << 10])
        async with asyncio.timeout(30):
            while frames.held < WRITE_HIGH_WATER:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        may_go_on.set()
        await asyncio.wait_for(stage.receive(), 30)
        stage.writer.write(requests[1][800 << 10 :])
        await asyncio.wait_for(stage.receive(), 30)
        assert frames.held == 0


async def test_nothing_is_left_when_a_client_goes(short_tmp_path: Path) -> None:
    async def never(worker: FakeWorker, frame: bytes) -> bytes | None:
        await asyncio.sleep(3600)
        return None

    async with Stage(short_tmp_path, never, 3).open() as stage:
        rng = random.Random(3)
        for worker in range(WORKERS):
            heartbeat = HeartbeatRequest(group_of(worker, rng))
            stage.writer.write(request_frame(HEARTBEAT, 4, worker, "c", heartbeat))
        while not all(worker.frames for worker in stage.workers):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        stage.writer.close()
        async with asyncio.timeout(30):
            while stage.clients:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        for task in asyncio.all_tasks():  # the workers', which would sleep on
            if "serve" in repr(task.get_coro()):
                task.cancel()


async def test_a_connection_is_idle_when_nothing_is_asked_for_long(short_tmp_path: Path) -> None:
    async with Stage(short_tmp_path, answer, 9).open() as stage:
        beat = request_frame(HEARTBEAT, 4, 1, "c", HeartbeatRequest("g"))
        stage.writer.write(beat)
        await asyncio.wait_for(stage.receive(), 30)
        (client,) = stage.clients
        assert not client.is_idle(1000, 60)  # active until the first look
        assert not client.is_idle(1050, 60)
        stage.writer.write(beat)
        await asyncio.wait_for(stage.receive(), 30)
        assert not client.is_idle(1061, 60)
        assert not client.is_idle(1121, 60)
        assert client.is_idle(1122, 60)
        client.replies.expect(WorkerReplies(PausableTransport()))
        assert not client.is_idle(2000, 60)
        client.replies.clear()


async def test_the_operator_may_speak_for_a_user(short_tmp_path: Path) -> None:
    alice = Identity(principal="User:alice", host="10.0.0.7", listener="SASL_SSL", revision=3)
    async with Stage(short_tmp_path, answer, 6).open() as stage:
        rng = random.Random(6)
        requests = b"".join(some_request(rng, n) for n in range(50))
        stage.writer.write(PREAMBLE.request(alice) + requests)
        for number in range(50):
            reply = await asyncio.wait_for(stage.receive(), 30)
            assert struct.unpack_from(">i", reply) == (number,)  # the preamble has no reply
        (client,) = stage.clients
        assert client.identity == alice
        assert {peer for worker in stage.workers for peer in worker.peers} == {"10.0.0.7"}


@pytest.mark.parametrize(
    "introduction",
    [
        private_frame(PREAMBLE.key, b"\xc1 nonsense"),
        PREAMBLE.request(Identity(role=Role.WORKER)),
        PREAMBLE.request(Identity(role=Role.UNAUTHENTICATED)),
    ],
    ids=["nonsense", "worker", "unauthenticated"],
)
async def test_a_preamble_of_no_user_closes_the_connection(
    short_tmp_path: Path, introduction: bytes
) -> None:
    async with Stage(short_tmp_path, answer, 7).open() as stage:
        stage.writer.write(introduction)
        assert await asyncio.wait_for(stage.reader.read(), 30) == b""
