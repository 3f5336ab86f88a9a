"""A client connection whose workers hang up, or send what cannot be read."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.frame import read_request_header, read_response, request_frame
from moldau.broker.wire.messages.describe_groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from moldau.broker.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from moldau.router import state
from tests.unit.router.fake_workers import (
    DESCRIBE,
    HEARTBEAT,
    HOME,
    FakeWorker,
    Stage,
    answer,
    group_of,
    numbers_of,
    produce_to,
)

UNAVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_a_worker_that_hangs_up_takes_only_its_own_along(short_tmp_path: Path) -> None:
    async def hang_up(worker: FakeWorker, frame: bytes) -> bytes | None:
        return None if worker.index == 1 else await answer(worker, frame)

    async with Stage(short_tmp_path, hang_up, 1).open() as stage:
        rng = random.Random(1)
        groups = [group_of(worker, rng) for worker in (0, 1, 2)]
        # A merged reply contains what is known.
        stage.writer.write(request_frame(DESCRIBE, 5, 1, "c", DescribeGroupsRequest(groups)))
        _, response = read_response(DESCRIBE, 5, await asyncio.wait_for(stage.receive(), 30))
        assert isinstance(response, DescribeGroupsResponse)
        assert [each.error_code for each in response.groups] == [
            0,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            0,
        ]
        # Its own requests cannot be answered; what was answered before still arrives.
        stage.writer.write(
            request_frame(HEARTBEAT, 4, 2, "c", HeartbeatRequest(groups[0]))
            + request_frame(HEARTBEAT, 4, 3, "c", HeartbeatRequest(groups[2]))
        )
        for number in (2, 3):
            assert struct.unpack_from(">i", await stage.receive()) == (number,)
        stage.writer.write(request_frame(HEARTBEAT, 4, 4, "c", HeartbeatRequest(groups[1])))
        assert await asyncio.wait_for(stage.reader.read(), 30) == b""


async def test_nothing_is_sent_to_a_worker_that_hung_up(short_tmp_path: Path) -> None:
    """An idle connection to a worker ends: the next request goes to another worker."""

    async with Stage(short_tmp_path, answer, 8).open() as stage:
        rng = random.Random(8)
        group, partition = group_of(HOME, rng), 0
        writers: list[asyncio.StreamWriter] = stage.workers[HOME].writers
        for number in range(0, 4, 2):
            stage.writer.write(produce_to([partition], number))
            await asyncio.wait_for(stage.receive(), 30)
            heartbeat = request_frame(HEARTBEAT, 4, number + 1, "c", HeartbeatRequest(group))
            stage.writer.write(heartbeat)
            await asyncio.wait_for(stage.receive(), 30)
        stage.servers[HOME].close()
        for writer in writers:
            writer.close()
        (client,) = stage.clients

        def is_connected() -> bool:
            """Whether the connection that watches the worker is there, or the client's own."""
            own = any(each.worker == HOME for each in client.workers.every)
            return own or stage.state.workers.is_up[HOME]

        async with asyncio.timeout(30):
            while is_connected():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        stage.writer.write(produce_to([partition], 4))
        assert struct.unpack_from(">i", await asyncio.wait_for(stage.receive(), 30)) == (4,)
        stage.writer.write(request_frame(HEARTBEAT, 4, 5, "c", HeartbeatRequest(group)))
        _, refused = read_response(HEARTBEAT, 4, await asyncio.wait_for(stage.receive(), 30))
        assert isinstance(refused, HeartbeatResponse)
        assert refused.error_code == UNAVAILABLE
        assert numbers_of(stage.workers[HOME]) == [0, 1, 2, 3]


async def test_a_part_that_cannot_be_read_is_replaced_as_that_of_a_worker_that_is_down(
    short_tmp_path: Path,
) -> None:
    async def garble(worker: FakeWorker, frame: bytes) -> bytes | None:
        reply = await answer(worker, frame)
        if worker.index != 1:
            return reply
        # One group is announced, and nothing follows.
        return struct.pack(">iibib", 10, read_request_header(frame).correlation_id, 0, 0, 2)

    async with Stage(short_tmp_path, garble, 1).open() as stage:
        rng = random.Random(1)
        groups = [group_of(worker, rng) for worker in (0, 1, 2)]
        stage.writer.write(request_frame(DESCRIBE, 5, 1, "c", DescribeGroupsRequest(groups)))
        _, response = read_response(DESCRIBE, 5, await asyncio.wait_for(stage.receive(), 30))
        assert isinstance(response, DescribeGroupsResponse)
        assert [each.error_code for each in response.groups] == [
            0,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            0,
        ]


# --- its socket outlives it ---


@contextlib.contextmanager
def dying(stage: Stage, worker: int) -> Iterator[socket.socket]:
    """A worker that accepts nothing more, while its connections are still open."""
    stage.servers[worker].close()
    path = Path(stage.paths[worker])
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        yield listening


async def request_to_a_dead_worker(stage: Stage) -> None:
    """Sent in the moment between a worker's end and the router's notice of it."""
    heartbeat = HeartbeatRequest(group_of(HOME, random.Random(8)))
    stage.writer.write(request_frame(HEARTBEAT, 4, 1, "c", heartbeat))
    async with asyncio.timeout(30):
        while not (stage.state.connections and not stage.state.connecting):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    for writer in stage.workers[HOME].writers:
        writer.close()


async def test_a_request_that_no_worker_has_accepted_does_not_wait_for_ever(
    short_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "BACK_WITHIN_S", 0.1)
    async with Stage(short_tmp_path, answer, 8).open() as stage:
        with dying(stage, HOME):
            await request_to_a_dead_worker(stage)
            assert await asyncio.wait_for(stage.reader.read(), 30) == b""
            assert not stage.state.connections


async def test_a_request_that_no_worker_has_accepted_is_answered_by_the_successor(
    short_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "BACK_WITHIN_S", 30)
    async with Stage(short_tmp_path, answer, 8).open() as stage:
        with dying(stage, HOME) as listening:
            await request_to_a_dead_worker(stage)
            async with asyncio.timeout(30):
                while stage.state.workers.is_up[HOME]:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            successor = stage.workers[HOME]
            stage.servers[HOME] = await asyncio.start_unix_server(successor.serve, sock=listening)
            assert struct.unpack_from(">i", await asyncio.wait_for(stage.receive(), 30)) == (1,)
            await stage.state.workers.until_up(30)
            (waited,) = stage.state.connections
            stage.state._give_up(HOME, [waited])  # it is up again: nothing to give up
            stage.writer.write(produce_to([0], 2))
            assert struct.unpack_from(">i", await asyncio.wait_for(stage.receive(), 30)) == (2,)
            stage.servers[HOME].close()
