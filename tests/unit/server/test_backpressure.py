"""What stops a connection from being read, and what resumes it: budgets, holds, slow readers."""

import asyncio
import socket
import struct

import pytest

from moldau.broker.server import flow_control as module
from moldau.broker.server.call import Call
from moldau.broker.server.limits import Budget
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


async def test_too_many_unanswered_bytes_stop_the_reading() -> None:
    recorder = Recorder()
    budget = Budget(64 * MIB, 2 * MIB)
    async with served(recorder, budget) as (client, _):
        sending = asyncio.ensure_future(
            send(client, framed(*(request(number, MIB // 2) for number in range(100))))
        )
        await until(lambda: len(recorder.calls) >= 5)
        await asyncio.sleep(0.2)
        assert len(recorder.calls) == 5  # what went over the limit was the last
        assert not sending.done()
        answered = 0
        while answered < 100:
            await recorder.more_than(answered)
            answer(recorder.calls[answered])
            answered += 1
            assert budget.used <= 3 * MIB
        await sending
        for number in range(100):
            assert await exactly(client, 8) == struct.pack(">ii", 4, number)
        assert budget.used == 0


async def test_too_many_unanswered_requests_stop_the_reading() -> None:
    recorder = Recorder()
    async with served(recorder) as (client, _):
        await send(client, framed(*(request(number) for number in range(2_000))))
        await until(lambda: len(recorder.calls) >= module.MAX_UNANSWERED)
        await asyncio.sleep(0.1)
        assert len(recorder.calls) == module.MAX_UNANSWERED
        answered = 0
        while answered < 2_000:
            await recorder.more_than(answered)
            for call in recorder.calls[answered:]:
                answer(call)
                answered += 1
        expected = b"".join(struct.pack(">ii", 4, number) for number in range(2_000))
        assert await exactly(client, len(expected)) == expected


async def test_a_client_that_does_not_read_is_not_read_from() -> None:
    """And what waits for it is counted, so that others get smaller replies, not none."""

    begun = 0

    def large(call: Call, frame: bytearray) -> None:
        nonlocal begun
        begun += 1
        answer(call, 4 * MIB)

    budget = Budget(64 * MIB, 16 * MIB)
    plenty = budget.reply_room
    async with served(large, budget) as (client, connections):
        await send(client, framed(*(request(number) for number in range(100))))
        await until(lambda: budget.held > 0)
        await asyncio.sleep(0.2)
        # All that arrived in one piece was begun together; nothing is begun after it.
        stuck = begun
        await send(client, framed(request(1_000)))
        await asyncio.sleep(0.1)
        assert begun == stuck
        assert budget.held > 4 * MIB
        assert budget.reply_room < plenty
        for number in range(100):
            head = await exactly(client, 8)
            assert head == struct.pack(">ii", 4 + 4 * MIB, number)
            await exactly(client, 4 * MIB)
        await exactly(client, 8)
        await exactly(client, 4 * MIB)
        await until(lambda: budget.held == 0)
        assert len(connections) == 1


async def test_nothing_is_begun_behind_one_that_holds_the_connection() -> None:
    recorder = Recorder()

    def holds(call: Call, frame: bytearray) -> None:
        recorder(call, frame)
        if call.header.correlation_id in (1, 3):
            call.connection.hold()

    async with served(holds) as (client, connections):
        await send(client, framed(*(request(number) for number in range(1, 4))))
        await until(lambda: len(recorder.calls) == 1)
        await send(client, framed(request(4)))
        await asyncio.sleep(0.05)
        assert len(recorder.calls) == 1
        (connection,) = connections
        connection.resume_soon()
        await until(lambda: len(recorder.calls) == 3)  # the third holds it again
        answer(recorder.calls[0])
        assert await exactly(client, 8) == struct.pack(">ii", 4, 1)
        assert len(recorder.calls) == 3
        connection.resume()
        await until(lambda: len(recorder.calls) == 4)


async def test_behind_one_that_holds_the_connection_little_is_read_and_its_end_is_seen() -> None:
    recorder = Recorder()

    def holds(call: Call, frame: bytearray) -> None:
        recorder(call, frame)
        call.connection.hold()

    lost: list[int] = []
    async with served(holds) as (client, connections):
        await send(client, framed(request(1)))
        await until(lambda: len(recorder.calls) == 1)
        recorder.calls[0].on_lost = lambda: lost.append(1)
        (connection,) = connections
        sending = asyncio.ensure_future(
            send(client, framed(*(request(number, MIB) for number in range(2, 100))))
        )
        await asyncio.sleep(0.2)
        assert not sending.done()
        assert len(connection._backlog) <= module.MAX_BACKLOG + 1
        sending.cancel()
    async with served(holds) as (client, connections):
        await send(client, framed(request(1)))
        await until(lambda: len(recorder.calls) == 2)
        recorder.calls[1].on_lost = lambda: lost.append(2)
        client.close()
        await until(lambda: lost == [1, 2])


async def test_what_a_lost_connection_held_is_given_back() -> None:
    recorder = Recorder()
    budget = Budget(64 * MIB, 16 * MIB)
    lost: list[int] = []
    async with served(recorder, budget) as (client, connections):
        await send(client, framed(*(request(number, 1000) for number in range(5))))
        await until(lambda: len(recorder.calls) == 5)
        for number, call in enumerate(recorder.calls):
            call.on_lost = lambda number=number: lost.append(number)
        answer(recorder.calls[0], 8 * MIB)
        await until(lambda: budget.held > 0)
        client.close()
        await until(lambda: not connections)
        assert budget.used == 0
        assert budget.held == 0
        assert lost == [1, 2, 3, 4]
        answer(recorder.calls[1])  # comes too late, and nothing happens


async def test_the_budget_of_all_connections_pauses_and_resumes_them() -> None:
    recorder = Recorder()
    budget = Budget(4 * MIB, 64 * MIB)
    async with served(recorder, budget) as (client, connections):
        other = socket.socket()
        other.setblocking(False)
        (connection,) = connections
        assert connection._transport is not None
        address = connection._transport.get_extra_info("sockname")
        await asyncio.get_running_loop().sock_connect(other, address)
        first = asyncio.ensure_future(
            send(client, framed(*(request(number, MIB) for number in range(20))))
        )
        await until(lambda: budget.exhausted)
        second = asyncio.ensure_future(
            send(other, framed(*(request(100 + number, MIB) for number in range(20))))
        )
        answered = 0
        while answered < 40:
            await recorder.more_than(answered)
            assert budget.used <= 6 * MIB
            answer(recorder.calls[answered])
            answered += 1
        await asyncio.gather(first, second)
        for number in range(20):
            assert await exactly(client, 8) == struct.pack(">ii", 4, number)
            assert await exactly(other, 8) == struct.pack(">ii", 4, 100 + number)
        assert budget.used == 0
        other.close()


async def test_a_dispatch_that_closes_the_connection_with_no_room_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with served(lambda call, frame: call.connection.abort(), Budget(1, 1)) as (
        client,
        connections,
    ):
        await until(lambda: len(connections) == 1)
        await send(client, framed(request(1)))
        await until(lambda: not connections)
    assert not caplog.text
