"""Markers reach every place: through leaders, past those that are down, however often it takes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from moldau.broker.coordinator import peers as peers_module
from moldau.broker.coordinator.peers import Peers
from moldau.broker.coordinator.transactions import markers as markers_module
from moldau.broker.coordinator.transactions.markers import LocalMarkers, Markers
from moldau.broker.errors import ErrorCode, KafkaError, SlotNotTaken, StoreDown, StoreFault
from moldau.broker.log.log import Log
from moldau.broker.log.writing.append import Marker
from moldau.broker.placement import leader_of
from moldau.broker.topics.topics import Topic
from moldau.broker.txn.effects import WriteMarkers
from moldau.broker.txn.record import TxnPartition, group_offsets_partition
from moldau.broker.wire.apis import ApiKey
from moldau.broker.wire.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tests.support.drivers.fake_peers import FakePeer, fake_peer, until

ID = b"t" * 16
STORE_ID = b"of the store"
# Of topic t, with two workers: those of this worker, and those of the other.
OURS = [TxnPartition("t", ID, number) for number in range(8) if leader_of("t", number, 2) == 0]
THEIRS = [TxnPartition("t", ID, number) for number in range(8) if leader_of("t", number, 2) == 1]
OUR_GROUPS, THEIR_GROUPS = group_offsets_partition(4), group_offsets_partition(5)


class FakeTopic:
    def __init__(self, name: str, topic_id: bytes, partitions: int) -> None:
        self.name, self.topic_id, self.partitions = name, topic_id, partitions


class World:
    """The topics, logs and groups of this worker."""

    def __init__(self) -> None:
        self.topics = {ID: FakeTopic("t", ID, 8)}  # in the store
        self.cached = dict(self.topics)  # as this worker knows
        self.written: list[tuple[str, int, Marker]] = []
        self.ended: list[tuple[int, ...]] = []
        self.faults: list[BaseException] = []  # of the next writes
        self.store_fault: StoreFault | None = None

    # --- topics ---

    def known(self, name: str, topic_id: bytes) -> Topic | None:
        return cast("Topic | None", self.cached.get(topic_id))

    async def find_by(self, name: str, topic_id: bytes) -> Topic | None:
        if self.store_fault is not None:
            raise self.store_fault
        self.cached = dict(self.topics)
        return cast("Topic | None", self.topics.get(topic_id))

    async def refresh(self, name: str) -> Topic | None:
        return next((cast("Topic", one) for one in self.topics.values() if one.name == name), None)

    # --- logs ---

    def log_for(self, topic: Topic, partition: int) -> Log:
        return cast("Log", FakeLog(self, topic.name, partition))

    # --- groups ---

    async def end(
        self, slot: int, producer_id: int, producer_epoch: int, number: int, commit: bool
    ) -> None:
        await asyncio.sleep(0)
        if self.faults:
            raise self.faults.pop(0)
        self.ended.append((slot, producer_id, producer_epoch, number, commit))


class FakeLog:
    def __init__(self, world: World, topic: str, partition: int) -> None:
        self._world, self._topic, self._partition = world, topic, partition

    def write_marker(self, marker: Marker, done: Callable[[BaseException | None], None]) -> None:
        if self._world.faults:
            done(self._world.faults.pop(0))
            return
        self._world.written.append((self._topic, self._partition, marker))
        done(None)


class Stage:
    """Markers of worker 0, beside one other worker."""

    def __init__(self, world: World, peer: FakePeer, sockets: list[str], workers: int) -> None:
        self.world = world
        self.peer = peer
        self.errors: dict[tuple[str, int], list[ErrorCode]] = {}  # of the peer's next answers
        self.peers = Peers(sockets, 0)
        self.tasks: set[asyncio.Task[None]] = set()
        local = LocalMarkers(world, world, world, self.spawn)
        self.markers = Markers(
            local, self.peers, SimpleNamespace(store_id=STORE_ID), worker=0, workers=workers
        )
        self.done: list[int] = []

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def write(
        self, number: int, *places: TxnPartition, name: str = "app", commit: bool = True
    ) -> None:
        wanted = WriteMarkers(name, 7, 3, number, commit, places)
        self.markers.write(wanted, lambda: self.done.append(number))

    async def until_done(self, *numbers: int) -> None:
        await until(lambda: len(self.done) >= len(numbers))
        await asyncio.sleep(0.02)
        assert sorted(self.done) == sorted(numbers)
        assert len(self.markers) == 0

    async def answer(self, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        assert request.store_id == STORE_ID
        return WriteTxnMarkersResponse(
            [
                WritableTxnMarkerResult(
                    marker.producer_id,
                    [
                        WritableTxnMarkerTopicResult(
                            topic.name,
                            [
                                WritableTxnMarkerPartitionResult(at, self._error(topic.name, at))
                                for at in topic.partition_indexes
                            ],
                        )
                        for topic in marker.topics
                    ],
                )
                for marker in request.markers
            ]
        )

    def _error(self, topic: str, partition: int) -> ErrorCode:
        errors = self.errors.get((topic, partition))
        return errors.pop(0) if errors else ErrorCode.NONE

    def asked(self) -> list[tuple[int, str, bytes, tuple[int, ...]]]:
        """What the peer was asked: number, topic, id, partitions."""
        return [
            (marker.coordinator_epoch, topic.name, topic.topic_id, tuple(topic.partition_indexes))
            for request in self.peer.requests
            for marker in request.markers
            for topic in marker.topics
        ]


@contextlib.asynccontextmanager
async def stage(directory: Path, workers: int = 2) -> AsyncIterator[Stage]:
    paths = [str(directory / f"w{number}") for number in range(workers)]

    async def unused(request: Any) -> None:
        raise AssertionError(request)

    async with fake_peer(directory / "w1", unused) as peer:
        made = Stage(World(), peer, paths, workers)
        peer.behave = made.answer
        try:
            yield made
        finally:
            made.peers.close()
            await asyncio.gather(*made.tasks, return_exceptions=True)


async def test_a_single_worker_needs_no_other(sockets: Path) -> None:
    async with stage(sockets, workers=1) as own:
        own.write(1, *OURS, *THEIRS, OUR_GROUPS, THEIR_GROUPS)
        assert own.done == []  # whoever asked is not called back while it still asks
        await own.until_done(1)
        assert {(topic, at) for topic, at, _ in own.world.written} == {
            (place.topic, place.partition) for place in OURS + THEIRS
        }
        assert {marker for _, _, marker in own.world.written} == {Marker(7, 3, 1, True)}
        assert own.world.ended == [(4, 7, 3, 1, True), (5, 7, 3, 1, True)]


async def test_each_leader_gets_its_own(sockets: Path) -> None:
    async with stage(sockets) as own:
        own.write(9, *OURS, *THEIRS, OUR_GROUPS, THEIR_GROUPS, commit=False)
        await own.until_done(9)
        assert [at for _, at, _ in own.world.written] == [place.partition for place in OURS]
        assert own.world.ended == [(4, 7, 3, 9, False)]
        (request,) = own.peer.requests
        (marker,) = request.markers
        assert (marker.producer_id, marker.producer_epoch) == (7, 3)
        assert (marker.transaction_result, marker.transaction_version) == (False, 2)
        assert set(own.asked()) == {
            (9, "t", ID, tuple(place.partition for place in THEIRS)),
            (9, "__consumer_offsets", bytes(16), (5,)),
        }


async def test_many_transactions_share_a_request(sockets: Path) -> None:
    async with stage(sockets) as own:
        for number in range(1, 11):
            own.write(number, THEIRS[0], name=f"app-{number}")
        await own.until_done(*range(1, 11))
        assert len(own.peer.requests) == 1
        assert [number for number, *_ in own.asked()] == list(range(1, 11))

        go_on = asyncio.Event()

        async def slow(request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
            await go_on.wait()
            return await own.answer(request)

        own.peer.behave = slow
        own.done.clear()
        for number in range(11, 21):
            own.write(number, THEIRS[0], name=f"app-{number}")
            await asyncio.sleep(0.005)
        assert len(own.peer.requests) == 2
        go_on.set()
        await own.until_done(*range(11, 21))
        assert len(own.peer.requests) == 3


async def test_more_than_fits_into_one_request(
    sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(markers_module, "PLACES_AT_ONCE", 3)
    async with stage(sockets) as own:
        own.write(1, *THEIRS, name="a")
        own.write(2, *THEIRS, name="b")
        await own.until_done(1, 2)
        sizes = [
            sum(
                len(topic.partition_indexes)
                for marker in request.markers
                for topic in marker.topics
            )
            for request in own.peer.requests
        ]
        assert sizes == [3, 3, 2]


async def test_a_leader_that_is_stopped_delays_nothing_for_long(
    sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers_module, "ANSWER_WITHIN_S", 0.05)
    async with stage(sockets) as own:
        own.peer.pause()
        own.write(1, *THEIRS)
        await own.until_done(1)
        assert [at for _, at, _ in own.world.written] == [place.partition for place in THEIRS]
        own.done.clear()
        own.write(2, *THEIRS)  # not even asked any more
        await own.until_done(2)
        assert len(own.world.written) == 2 * len(THEIRS)
        # Back again, it gets its own.
        own.peer.resume()
        await until(lambda: not own.peers.link(1, ApiKey.WRITE_TXN_MARKERS, 2).is_down)
        own.done.clear()
        own.write(3, *THEIRS)
        await own.until_done(3)
        assert len(own.world.written) == 2 * len(THEIRS)


async def test_groups_of_a_worker_that_is_down_wait_for_it(
    sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers_module, "ANSWER_WITHIN_S", 0.05)
    async with stage(sockets) as own:
        own.peer.pause()
        own.write(1, THEIR_GROUPS, *THEIRS)
        await until(lambda: len(own.world.written) == len(THEIRS))
        await asyncio.sleep(0.3)
        assert own.done == []
        own.peer.resume()
        await own.until_done(1)
        assert own.world.ended == []


async def test_an_error_of_the_leader_is_tried_again(sockets: Path) -> None:
    async with stage(sockets) as own:
        own.errors["t", THEIRS[0].partition] = [
            ErrorCode.KAFKA_STORAGE_ERROR,
            ErrorCode.REQUEST_TIMED_OUT,
        ]
        own.errors["__consumer_offsets", 5] = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
        own.write(1, *THEIRS, THEIR_GROUPS)
        await own.until_done(1)
        assert own.asked()[2:] == [
            (1, "__consumer_offsets", bytes(16), (5,)),
            (1, "t", ID, (THEIRS[0].partition,)),
            (1, "t", ID, (THEIRS[0].partition,)),
        ]
        assert own.world.written == []


async def test_faults_of_the_store_are_tried_again(sockets: Path) -> None:
    async with stage(sockets) as own:
        own.world.faults = [StoreDown("down")] * 3
        own.write(1, *OURS)
        await own.until_done(1)
        assert len(own.world.written) == len(OURS)
        own.done.clear()
        own.world.faults = [SlotNotTaken("loading"), ValueError("a defect")]
        own.write(2, OUR_GROUPS)
        await own.until_done(2)
        assert own.world.ended == [(4, 7, 3, 2, True)]


@pytest.mark.parametrize("place", [OURS[0], THEIRS[0]])
async def test_7_18_a_topic_that_was_deleted_is_left_out(
    sockets: Path, place: TxnPartition
) -> None:
    """Also if there is another of that name."""
    async with stage(sockets) as own:
        own.world.topics = {b"n" * 16: FakeTopic("t", b"n" * 16, 8)}
        own.world.cached = dict(own.world.topics)
        own.errors["t", place.partition] = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        own.write(1, place)
        await own.until_done(1)
        assert own.world.written == []


async def test_a_topic_that_only_is_not_known_yet(sockets: Path) -> None:
    async with stage(sockets) as own:
        own.world.cached = {}
        own.world.topics = {ID: FakeTopic("t", ID, 8)}
        own.errors["t", THEIRS[0].partition] = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2
        own.write(1, OURS[0], THEIRS[0])
        await own.until_done(1)
        assert len(own.world.written) == 1
        assert len(own.peer.requests) == 3


async def test_whether_a_topic_is_gone_only_the_store_knows(sockets: Path) -> None:
    async with stage(sockets) as own:
        own.world.cached = own.world.topics = {}
        own.world.store_fault = StoreDown("down")
        own.write(1, OURS[0])
        await asyncio.sleep(0.2)
        assert own.done == []
        own.world.store_fault = None
        await own.until_done(1)


async def test_a_log_whose_topic_goes_meanwhile(sockets: Path) -> None:
    async with stage(sockets) as own:
        own.world.faults = [KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
        own.world.topics = {}
        own.write(1, OURS[0])
        await own.until_done(1)


async def test_partitions_added_later(sockets: Path) -> None:
    async with stage(sockets) as own:
        own.world.cached = {ID: FakeTopic("t", ID, 1)}
        own.write(1, *OURS)
        await own.until_done(1)
        assert len(own.world.written) == len(OURS)


async def test_what_another_worker_owns_now_is_forgotten(sockets: Path) -> None:
    async with stage(sockets) as own:
        own.world.faults = [StoreDown("down")] * 2
        own.write(1, OURS[0], name="mine")
        own.write(2, OURS[0], name="not mine")
        own.markers.forget(lambda name: name == "not mine")
        await own.until_done(1)
        assert [marker.number for _, _, marker in own.world.written] == [1]


async def test_asked_again_it_begins_again(sockets: Path) -> None:
    """The store may have lost markers of which we know that they were written."""
    async with stage(sockets) as own:
        own.world.faults = [StoreDown("down")]
        own.write(1, *OURS)  # all but the first are written
        own.write(1, *OURS)
        await own.until_done(1)
        assert len(own.world.written) == 2 * len(OURS) - 1


async def test_an_answer_about_something_else(sockets: Path) -> None:
    """It counts as none."""

    async def wrong(request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        return WriteTxnMarkersResponse([])

    async with stage(sockets) as own:
        own.peer.behave = wrong
        own.write(1, *THEIRS)
        await own.until_done(1)
        assert len(own.world.written) == len(THEIRS)


async def test_failures_do_not_flood_the_log(
    sockets: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with stage(sockets) as own:
        own.world.faults = [StoreDown("down")] * 50
        for number in range(25):
            own.write(number, OURS[0], OURS[1], name=f"app-{number}")
        await own.until_done(*range(25))
    assert len([one for one in caplog.records if one.name == "moldau.coordinator"]) == 1
