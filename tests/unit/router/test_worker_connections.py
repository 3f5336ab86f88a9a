"""Which worker the requests of one connection go to, and in which order they arrive there."""

from __future__ import annotations

import asyncio
import random
import struct
from pathlib import Path

from moldau.broker.placement import leader_of
from moldau.broker.wire.frame import read_request_header, request_frame
from moldau.broker.wire.messages.heartbeat import HeartbeatRequest
from moldau.broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tests.unit.router.fake_workers import (
    HEARTBEAT,
    HOME,
    PRODUCE,
    WORKERS,
    FakeWorker,
    Stage,
    answer,
    group_of,
    numbers_of,
    produce_to,
)


async def test_produce_to_several_leaders_overtakes_nothing(short_tmp_path: Path) -> None:
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

    async with Stage(short_tmp_path, append, 2).open() as stage:
        rng = random.Random(2)
        stage.writer.write(b"".join(request(rng, number) for number in range(200)))
        for number in range(200):
            reply = await asyncio.wait_for(stage.receive(), 30)
            assert struct.unpack(">i", reply) == (number,)
        assert all(worker.frames for worker in stage.workers)
        for numbers in log.values():
            assert numbers == sorted(numbers)


async def test_requests_that_begin_alike_go_where_they_belong(short_tmp_path: Path) -> None:
    """One at a time, many like the one before and some not; both as they are sent and in pieces."""

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
            reply = await asyncio.wait_for(stage.receive(), 30)
            assert struct.unpack_from(">i", reply) == (number,)
        for worker, numbers in zip(stage.workers, expected, strict=True):
            got = [read_request_header(frame).correlation_id for frame in worker.frames]
            assert got == numbers
            assert worker.peers == ["unix"]  # one connection


async def test_a_produce_to_several_leaders_changes_where_the_next_ones_go(
    short_tmp_path: Path,
) -> None:
    async with Stage(short_tmp_path, answer, 6).open() as stage:
        away = next(index for index in range(6) if leader_of("t", index, WORKERS) != HOME)
        for number, partitions in enumerate(([away], [away], [0, 1, 2], [away], [away])):
            stage.writer.write(produce_to(partitions, number))
            reply = await asyncio.wait_for(stage.receive(), 30)
            assert struct.unpack_from(">i", reply) == (number,)
        home, leader = stage.workers[HOME], stage.workers[leader_of("t", away, WORKERS)]
        assert numbers_of(leader) == [0, 1]
        assert numbers_of(home) == [2, 3, 4]
