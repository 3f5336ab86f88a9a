"""Enlistment: one answer for every request, from this worker's transactions or another worker's."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from moldau.broker.coordinator import peers as peers_module
from moldau.broker.coordinator.peers import Peers
from moldau.broker.coordinator.transactions import enlistment
from moldau.broker.coordinator.transactions.coordinator import ReplyHandle
from moldau.broker.coordinator.transactions.enlistment import Enlistment
from moldau.broker.errors import ErrorCode
from moldau.broker.placement import owner_of
from moldau.broker.txn.effects import AddAnswer
from moldau.broker.txn.events import Add
from moldau.broker.txn.record import TxnPartition, group_offsets_partition
from moldau.broker.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from tests.support.drivers.fake_peers import FakePeer, fake_peer

ID = b"t" * 16
OURS, THEIRS = (
    [name for name in map("app-{}".format, range(60)) if owner_of(name, 2) == worker]
    for worker in range(2)
)
NONE = ErrorCode.NONE
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS


class FakeTransactions:
    """Those of this worker: answers at once, or when the test says."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Add]] = []
        self.answer: AddAnswer | None = AddAnswer(NONE, 5)
        self.store_id = b"store 1"

    def knows(self, store_id: bytes) -> bool:
        return store_id == self.store_id

    def submit(self, transactional_id: str, event: Add) -> None:
        self.events.append((transactional_id, event))
        if self.answer is not None:
            cast("ReplyHandle", event.call).answered(self.answer)


class Stage:
    def __init__(self, peer: FakePeer, sockets: list[str]) -> None:
        self.peer = peer
        self.transactions = FakeTransactions()
        self.peers = Peers(sockets, 0)
        self.enlistment = Enlistment(
            self.transactions, self.peers, SimpleNamespace(store_id=b"store 1"), worker=0, workers=2
        )
        self.errors: list[ErrorCode] = []  # of the peer's next partitions
        self.number = 17

    async def ask(
        self, name: str, place: TxnPartition, *, verify_only: bool = False, epoch: int = 3
    ) -> tuple[ErrorCode, int]:
        future: asyncio.Future[tuple[ErrorCode, int]] = asyncio.get_running_loop().create_future()

        def done(error: ErrorCode, number: int) -> None:
            future.set_result((error, number))  # raises if it is called again

        self.enlistment.enlist(name, 7, epoch, place, verify_only=verify_only, done=done)
        return await asyncio.wait_for(future, 20)

    async def answer(self, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        return AddPartitionsToTxnResponse(
            results_by_transaction=[
                AddPartitionsToTxnResult(
                    each.transactional_id,
                    [
                        AddPartitionsToTxnTopicResult(
                            topic.name, [self._result(at) for at in topic.partitions]
                        )
                        for topic in each.topics
                    ],
                )
                for each in request.transactions
            ]
        )

    def _result(self, partition: int) -> AddPartitionsToTxnPartitionResult:
        error = self.errors.pop(0) if self.errors else NONE
        return AddPartitionsToTxnPartitionResult(partition, error, self.number)


@contextlib.asynccontextmanager
async def stage(directory: Path) -> AsyncIterator[Stage]:
    async def unused(request: Any) -> None:
        raise AssertionError(request)

    async with fake_peer(directory / "w1", unused) as peer:
        made = Stage(peer, [str(directory / "w0"), str(directory / "w1")])
        peer.behave = made.answer
        try:
            yield made
        finally:
            made.peers.close()


async def gathered(*asking: Awaitable[tuple[ErrorCode, int]]) -> list[tuple[ErrorCode, int]]:
    return list(await asyncio.gather(*asking))


def place(number: int, topic: str = "t") -> TxnPartition:
    return TxnPartition(topic, ID, number)


# --- this worker is the owner ---


async def test_an_owner_that_sees_another_store_id_is_not_asked(sockets: Path) -> None:
    """It may not know yet that its transactions have lost something."""
    async with stage(sockets) as on:
        on.transactions.store_id = b"store 0"
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert await on.ask(OURS[0], place(0)) == (loading, 0)
        assert not on.transactions.events
        await on.ask(THEIRS[0], place(0))
        assert on.peer.requests[-1].store_id == b"store 1"  # for it to compare


async def test_what_one_turn_asks_is_one_event(sockets: Path) -> None:
    async with stage(sockets) as own:
        answers = await gathered(
            own.ask(OURS[0], place(1)),
            own.ask(OURS[0], place(2)),
            own.ask(OURS[0], place(1)),
            own.ask(OURS[1], place(1)),
            own.ask(OURS[0], place(1), epoch=4),
            own.ask(OURS[0], place(1), verify_only=True),
        )
        assert answers == [(NONE, 5)] * 6
        assert [
            (name, event.producer_epoch, event.partitions, event.verify_only, event.waits)
            for name, event in own.transactions.events
        ] == [
            (OURS[0], 3, (place(1), place(2)), False, True),
            (OURS[1], 3, (place(1),), False, True),
            (OURS[0], 4, (place(1),), False, True),
            (OURS[0], 3, (place(1),), True, True),
        ]
        assert own.peer.requests == []


async def test_places_that_are_missing(sockets: Path) -> None:
    async with stage(sockets) as own:
        own.transactions.answer = AddAnswer(NONE, 5, frozenset({place(2)}))
        answers = await asyncio.gather(
            *(own.ask(OURS[0], place(number), verify_only=True) for number in (1, 2))
        )
        assert answers == [(NONE, 5), (ErrorCode.TRANSACTION_ABORTABLE, 0)]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (CONCURRENT, CONCURRENT),
        (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR),
    ],
)
async def test_errors_are_passed_on(sockets: Path, error: ErrorCode, expected: ErrorCode) -> None:
    async with stage(sockets) as own:
        own.transactions.answer = AddAnswer(error)
        assert await own.ask(OURS[0], place(1)) == (expected, 0)


async def test_one_that_fails_does_not_cost_the_others_their_answers(
    sockets: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with stage(sockets) as own:

        def fails(error: ErrorCode, number: int) -> None:
            raise ValueError("a defect")

        own.enlistment.enlist(OURS[0], 7, 3, place(1), verify_only=False, done=fails)
        assert await own.ask(OURS[0], place(2)) == (NONE, 5)
    assert "t-1 cannot go on" in caplog.text


# --- another worker is ---


async def test_what_one_turn_asks_is_one_request(sockets: Path) -> None:
    async with stage(sockets) as own:
        other = TxnPartition("t", b"o" * 16, 2)  # of the same name, deleted and created again
        answers = await gathered(
            own.ask(THEIRS[0], place(2)),
            own.ask(THEIRS[0], other),
            own.ask(THEIRS[0], place(1)),
            own.ask(THEIRS[0], group_offsets_partition(9)),
            own.ask(THEIRS[1], place(1), verify_only=True),
        )
        assert answers == [(NONE, 17)] * 5
        (request,) = own.peer.requests
        assert [
            (
                each.transactional_id,
                each.producer_id,
                each.producer_epoch,
                each.verify_only,
                [(topic.name, topic.topic_id, topic.partitions) for topic in each.topics],
            )
            for each in request.transactions
        ] == [
            (
                THEIRS[0],
                7,
                3,
                False,
                [("__consumer_offsets", bytes(16), [9]), ("t", b"o" * 16, [2]), ("t", ID, [1, 2])],
            ),
            (THEIRS[1], 7, 3, True, [("t", ID, [1])]),
        ]


async def test_each_partition_has_its_own_answer(sockets: Path) -> None:
    async with stage(sockets) as own:
        own.errors = [NONE, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.PRODUCER_FENCED]
        answers = await asyncio.gather(
            *(own.ask(THEIRS[0], place(number), verify_only=True) for number in (3, 1, 2))
        )
        assert answers == [
            (ErrorCode.INVALID_PRODUCER_EPOCH, 0),
            (NONE, 17),
            (ErrorCode.TRANSACTION_ABORTABLE, 0),
        ]


async def test_the_same_place_asked_twice(sockets: Path) -> None:
    async with stage(sockets) as own:
        own.errors = [NONE, ErrorCode.INVALID_TXN_STATE]
        answers = await gathered(own.ask(THEIRS[0], place(1)), own.ask(THEIRS[0], place(1)))
        assert answers == [(NONE, 17), (ErrorCode.INVALID_TXN_STATE, 0)]


async def test_what_comes_meanwhile_is_gathered(sockets: Path) -> None:
    async with stage(sockets) as own:
        go_on = asyncio.Event()

        async def slow(request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
            await go_on.wait()
            return await own.answer(request)

        own.peer.behave = slow
        asking = [asyncio.ensure_future(own.ask(THEIRS[0], place(0)))]
        await asyncio.sleep(0.02)
        for number in range(1, 30):
            asking.append(asyncio.ensure_future(own.ask(THEIRS[number % 3], place(number))))
            await asyncio.sleep(0.001)
        # Nothing else waits for it.
        assert await own.ask(OURS[0], place(1)) == (NONE, 5)
        go_on.set()
        assert await asyncio.gather(*asking) == [(NONE, 17)] * 30
        assert len(own.peer.requests) == 2


async def test_more_than_fits_into_one_request(
    sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enlistment, "PLACES_AT_ONCE", 4)
    async with stage(sockets) as own:
        asking = (own.ask(THEIRS[number % 2], place(number)) for number in range(10))
        assert await asyncio.gather(*asking) == [(NONE, 17)] * 10
        assert len(own.peer.requests) == 3


async def test_7_14_a_transaction_that_is_still_ending_is_asked_again(sockets: Path) -> None:
    async with stage(sockets) as own:
        own.errors = [CONCURRENT, CONCURRENT]
        assert await own.ask(THEIRS[0], place(1)) == (NONE, 17)
        assert len(own.peer.requests) == 3


async def test_it_is_not_asked_for_ever(sockets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A busy machine may take longer to answer than a worker that is down is waited for.
    monkeypatch.setattr(peers_module, "ANSWER_WITHIN_S", 30)
    async with stage(sockets) as own:
        own.errors = [CONCURRENT] * 100
        started = asyncio.get_running_loop().time()
        assert await own.ask(THEIRS[0], place(1)) == (CONCURRENT, 0)
        assert asyncio.get_running_loop().time() - started > enlistment.WAIT_FOR_MARKERS_S * 0.9
        assert len(own.peer.requests) < 10


async def test_what_is_only_verified_is_not_waited_for(sockets: Path) -> None:
    async with stage(sockets) as own:
        own.errors = [CONCURRENT]
        assert await own.ask(THEIRS[0], place(1), verify_only=True) == (CONCURRENT, 0)
        assert len(own.peer.requests) == 1


async def test_an_owner_that_is_down(sockets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "ANSWER_WITHIN_S", 0.05)
    down = (ErrorCode.COORDINATOR_NOT_AVAILABLE, 0)
    async with stage(sockets) as own:
        own.peer.pause()
        asking = asyncio.gather(*(own.ask(THEIRS[0], place(number)) for number in range(5)))
        assert await own.ask(OURS[0], place(1)) == (NONE, 5)
        assert await asking == [down] * 5
        assert await own.ask(THEIRS[0], place(1)) == down


async def test_what_waits_is_limited(sockets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enlistment, "MAX_WAITING", 10)
    async with stage(sockets) as own:
        answers = await asyncio.gather(*(own.ask(THEIRS[0], place(number)) for number in range(15)))
        assert answers == [(NONE, 17)] * 10 + [(ErrorCode.COORDINATOR_NOT_AVAILABLE, 0)] * 5
        assert await own.ask(THEIRS[0], place(1)) == (NONE, 17)


async def test_an_error_that_this_version_does_not_know(sockets: Path) -> None:
    async def newer(request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        response = await own.answer(request)
        result = response.results_by_transaction[0].topic_results[0].results_by_partition[0]
        result.partition_error_code = 9999
        return response

    async with stage(sockets) as own:
        own.peer.behave = newer
        assert await own.ask(THEIRS[0], place(1)) == (ErrorCode.UNKNOWN_SERVER_ERROR, 0)


async def test_an_answer_about_something_else(sockets: Path) -> None:
    async def wrong(request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        return AddPartitionsToTxnResponse()

    async with stage(sockets) as own:
        own.peer.behave = wrong
        assert await own.ask(THEIRS[0], place(1)) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, 0)
