"""Transactions that a log has open and no coordinator knows, after the store lost its tail."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from moldau.broker.coordinator.peers import Link
from moldau.broker.coordinator.transactions import hanging_transactions
from moldau.broker.coordinator.transactions.hanging_transactions import HangingTransactions
from moldau.broker.txn.record import TxnPartition, TxnState, TxnView
from moldau.broker.wire.apis import ApiKey
from moldau.broker.wire.messages.describe_transactions import (
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from moldau.broker.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from moldau.broker.wire.messages.list_transactions import (
    TransactionState as ListedState,
)
from moldau.broker.wire.schema import NO_UUID, Message
from tests.support.drivers.log_host import Host, append, until
from tests.support.drivers.transactional import Coordinator, end, send, transactional_batch
from tests.support.stores.gaps import lose_and_go_on
from tests.support.stores.redis_server import RedisServer

STORE_ID = b"second"


@pytest.fixture
def store(server: RedisServer) -> Iterator[Any]:
    with redis.from_url(server.url) as client:
        yield client


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hanging_transactions, "LOOK_AGAIN_S", 0.02)


class Transactions:
    def __init__(self, *views: TxnView) -> None:
        self.is_loading = 0
        self.ending: set[int] = set()
        self.store_id = STORE_ID
        self._views = list(views)

    def loading(self) -> int:
        return self.is_loading

    def knows(self, store_id: bytes) -> bool:
        return self.store_id == store_id

    def is_ending(self, producers: Collection[int]) -> bool:
        return not self.ending.isdisjoint(producers)

    def views(self) -> list[TxnView]:
        return self._views


class FakeLink:
    def __init__(self, answer: Message | None) -> None:
        self._answer = answer

    def send(self, message: Message, answered: Any) -> None:
        if isinstance(message, ListTransactionsRequest):
            assert message.store_id == STORE_ID, "the other worker may have seen less"
        answered(self._answer)


class Links:
    """Links to one other worker."""

    def __init__(self) -> None:
        self.answers: dict[ApiKey, Message | None] = {
            ApiKey.LIST_TRANSACTIONS: ListTransactionsResponse(),
            ApiKey.DESCRIBE_TRANSACTIONS: None,
        }

    def link(self, worker: int, api: ApiKey, version: int) -> Link:
        return FakeLink(self.answers[api])  # type: ignore[return-value]


def ongoing(producer_id: int, place: TxnPartition, state: TxnState = TxnState.ONGOING) -> TxnView:
    return TxnView("id", state, producer_id, 0, 1000, 0, 1, (place,))


async def log_with_open_transactions(host: Host, store: Any, *producers: int) -> Any:
    coordinator = Coordinator()
    coordinator.numbers = dict.fromkeys(producers, 1)
    host.coordinator = coordinator
    log = await host.create(f"orphans-{uuid.uuid4().hex[:12]}")
    for producer in producers:
        await send(log, producer, 0).outcome
    lose_and_go_on(store, log.key, len(producers), 1000)
    again = host.log(log.topic)
    await again.current()
    assert again.transactions_left_open() == set(producers)
    assert host.left_open == [(log.topic, 0)]
    return again


async def test_what_no_coordinator_knows_is_aborted(server: RedisServer, store: Any) -> None:
    async with Host(server.url) as host:
        log = await log_with_open_transactions(host, store, 7, 8, 9)
        place = TxnPartition(log.topic, NO_UUID, 0)
        links = Links()
        links.answers[ApiKey.LIST_TRANSACTIONS] = ListTransactionsResponse(
            transaction_states=[
                ListedState("other", 8, "Ongoing"),
                ListedState("more", 9, "Ongoing"),
            ]
        )
        links.answers[ApiKey.DESCRIBE_TRANSACTIONS] = DescribeTransactionsResponse(
            transaction_states=[
                TransactionState(producer_id=8, topics=[TopicData(log.topic, [0])]),
                TransactionState(producer_id=9, topics=[TopicData("elsewhere", [0])]),
            ]
        )
        mine = Transactions(ongoing(7, place, TxnState.COMPLETE_COMMIT))
        looking = HangingTransactions(
            mine, links, SimpleNamespace(store_id=STORE_ID), host.spawn, worker=0, workers=2
        )
        looking.look(log, place)
        await until(lambda: log.transactions_left_open() == {8})
        assert log.bounds()[3] == 1, "the other worker's coordinator is to end it"
        await end(log, 8, 1, commit=True)
        assert log.bounds()[3] == log.end == 1003


async def test_no_answer_no_abort(server: RedisServer, store: Any) -> None:
    async with Host(server.url) as host:
        log = await log_with_open_transactions(host, store, 7)
        place = TxnPartition(log.topic, NO_UUID, 0)
        links = Links()
        links.answers[ApiKey.LIST_TRANSACTIONS] = None
        mine = Transactions()
        mine.is_loading = 1
        looking = HangingTransactions(
            mine, links, SimpleNamespace(store_id=STORE_ID), host.spawn, worker=0, workers=2
        )
        looking.look(log, place)
        for at in range(5):
            await append(log, transactional_batch(20, at, [b"plain"], plain=True))
        mine.is_loading, mine.ending = 0, {7}  # of a transaction before, whose marker was lost
        links.answers[ApiKey.LIST_TRANSACTIONS] = ListTransactionsResponse()
        for at in range(5, 10):
            await append(log, transactional_batch(20, at, [b"plain"], plain=True))
        mine.ending, mine.store_id = set(), b"first"  # it is about to write its markers again
        for at in range(10, 15):
            await append(log, transactional_batch(20, at, [b"plain"], plain=True))
        links.answers[ApiKey.LIST_TRANSACTIONS] = None
        mine.store_id = STORE_ID
        for at in range(15, 20):
            await append(log, transactional_batch(20, at, [b"plain"], plain=True))
        assert log.transactions_left_open() == {7}
        links.answers[ApiKey.LIST_TRANSACTIONS] = ListTransactionsResponse()
        await until(lambda: not log.transactions_left_open())
        assert log.bounds()[3] == log.end
