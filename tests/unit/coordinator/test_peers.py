"""Links between workers: an answer or none, one request at a time, nothing waits for long."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.broker.coordinator import peers
from moldau.broker.coordinator.peers import Link, Peers
from moldau.broker.wire.apis import ApiKey
from moldau.broker.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from moldau.broker.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from moldau.broker.wire.schema import Message
from tests.support.drivers.fake_peers import fake_peer, until


@pytest.fixture
def place(sockets: Path) -> Path:
    return sockets / "w1"


@contextlib.contextmanager
def linked(path: Path) -> Iterator[Link]:
    made = Peers(["unused", str(path)], 0)
    try:
        yield made.link(1, ApiKey.END_TXN, 5)
    finally:
        made.close()


async def echo(request: EndTxnRequest) -> EndTxnResponse:
    return EndTxnResponse(producer_id=request.producer_id)


async def never(request: Message) -> None:
    await asyncio.Event().wait()


async def ask(link: Link, number: int) -> int | None:
    future: asyncio.Future[Message | None] = asyncio.get_running_loop().create_future()
    link.send(EndTxnRequest(producer_id=number), future.set_result)
    answer = await asyncio.wait_for(future, 20)
    if answer is None:
        return None
    assert isinstance(answer, EndTxnResponse)
    return answer.producer_id


async def test_requests_are_answered_over_one_connection(place: Path) -> None:
    async with fake_peer(place, echo) as peer:
        with linked(place) as link:
            assert [await ask(link, number) for number in range(5)] == list(range(5))
            assert peer.connections == 1
            assert peer.greetings == ["worker 0"]


async def test_a_large_answer_in_pieces(place: Path) -> None:
    async def much(request: ListTransactionsRequest) -> ListTransactionsResponse:
        return ListTransactionsResponse(unknown_state_filters=["x" * 100] * 20_000)

    async with fake_peer(place, much):
        made = Peers(["", str(place)], 0)
        future: asyncio.Future[Message | None] = asyncio.get_running_loop().create_future()
        made.link(1, ApiKey.LIST_TRANSACTIONS, 0).send(ListTransactionsRequest(), future.set_result)
        answer = await asyncio.wait_for(future, 20)
        assert isinstance(answer, ListTransactionsResponse)
        assert len(answer.unknown_state_filters) == 20_000
        made.close()


async def test_no_answer_in_time_and_back_again(
    place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker that is stopped (SIGSTOP): the kernel still accepts for it."""
    monkeypatch.setattr(peers, "ANSWER_WITHIN_S", 0.05)
    caplog.set_level(logging.INFO, "moldau.coordinator")
    async with fake_peer(place, echo) as peer:
        with linked(place) as link:
            assert await ask(link, 1) == 1
            peer.pause()
            assert await ask(link, 2) is None
            assert link.is_down
            for number in range(3, 103):
                assert await ask(link, number) is None  # at once
            assert len(peer.requests) == 1
            peer.resume()
            await until(lambda: not link.is_down)
            assert await ask(link, 200) == 200
    warnings = [one for one in caplog.records if one.name == "moldau.coordinator"]
    assert [one.levelname for one in warnings] == ["WARNING", "INFO"]


async def test_an_answer_that_comes_too_late_answers_nothing_else(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "ANSWER_WITHIN_S", 0.05)
    delay = 0.1

    async def slow(request: EndTxnRequest) -> EndTxnResponse:
        await asyncio.sleep(delay)
        return EndTxnResponse(producer_id=request.producer_id)

    async with fake_peer(place, slow):
        with linked(place) as link:
            assert await ask(link, 1) is None
            delay = 0
            await until(lambda: not link.is_down)
            for number in range(2, 20):
                assert await ask(link, number) == number
                await asyncio.sleep(0.01)


async def test_a_worker_that_dies_with_a_request(place: Path) -> None:
    async with fake_peer(place, never) as peer:
        with linked(place) as link:
            asking = asyncio.ensure_future(ask(link, 1))
            await until(lambda: peer.requests)
            started = asyncio.get_running_loop().time()
            peer.behave = echo
            await peer.stop()
            assert await asking is None
            assert asyncio.get_running_loop().time() - started < 1
            assert await ask(link, 2) is None
            await peer.start()
            await until(lambda: not link.is_down)
            assert await ask(link, 3) == 3


async def test_a_connection_lost_while_nothing_is_asked(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An idle connection ends, or the worker was restarted: nothing to be logged."""
    async with fake_peer(place, echo) as peer:
        with linked(place) as link:
            assert await ask(link, 1) == 1
            for round_ in range(5):
                peer.cut()
                await until(lambda: peer.connections == round_ + 2 and not link.is_down)  # noqa: B023
                assert await ask(link, round_) == round_
    assert [one for one in caplog.records if one.name == "moldau.coordinator"] == []


async def test_no_socket_at_all(place: Path) -> None:
    with linked(place) as link:
        assert await ask(link, 1) is None
        assert link.is_down
        async with fake_peer(place, echo):
            await until(lambda: not link.is_down)
            assert await ask(link, 2) == 2


async def test_what_answers_is_no_worker(place: Path) -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read(10)
            writer.write(b"\0\0\0\4\0\0\0\0" + b"\xff" * 100)
            await reader.read()
        writer.close()

    server = await asyncio.start_unix_server(babble, str(place))
    with linked(place) as link:
        for number in range(3):
            assert await ask(link, number) is None
    server.close()


async def test_closing_ends_what_is_under_way(place: Path) -> None:
    async with fake_peer(place, never) as peer:
        with linked(place) as link:
            asking = asyncio.ensure_future(ask(link, 1))
            await until(lambda: peer.requests)
        assert await asking is None
        assert await ask(link, 2) is None
