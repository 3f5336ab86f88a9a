"""Fetches of share-partitions from real logs: 9.8, 9.15, 9.16, 9.17, 9.23 to 9.26, 9.33."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import NamedTuple

import pytest

from moldau.broker.coordinator.shares.parking import Parking
from moldau.broker.coordinator.shares.partitions import Led
from moldau.broker.coordinator.shares.reading import ShareRead, Taken
from moldau.broker.errors import ErrorCode
from moldau.broker.log.partition import PartitionLog
from moldau.broker.share.limits import AcquireMode, ShareLimits, Wish
from moldau.broker.wire.batch import headers
from moldau.broker.wire.records import Record, build_batch
from tests.support.drivers.log_host import Host, append
from tests.support.drivers.transactional import Coordinator, Participant
from tests.support.stores.redis_server import RedisServer
from tests.unit.coordinator.share_worker import ACCEPT, RELEASE, Worker, until, working

_numbers = count()


class Client(NamedTuple):
    reads_committed: bool = False
    client_id: str = ""
    client_host: str = ""


def batch(size: int = 1) -> bytearray:
    records = [Record(at, 1_000, None, b"value") for at in range(size)]
    return build_batch(records, base_offset=0, last_offset=size - 1)


class Queue:
    """A share-partition of a log."""

    def __init__(self, worker: Worker, host: Host, led: Led, log: PartitionLog) -> None:
        self.worker = worker
        self.host = host
        self.led = led
        self.log = log
        self.client = Client()
        self.parking = Parking(worker.shares)

    async def append(self, *sizes: int) -> None:
        for size in sizes:
            await append(self.log, batch(size))

    async def fetch(
        self,
        member: str = "m",
        most: int = 500,
        *,
        limit: int = 1 << 20,
        mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED,
    ) -> Taken:
        future: asyncio.Future[Taken] = asyncio.get_running_loop().create_future()
        wish = Wish(most, 500, mode)
        ShareRead(
            self.worker.shares, self.led, self.log, self.client, member, wish, limit,
            future.set_result,
        ).start()  # fmt: skip
        return await asyncio.wait_for(future, 60)

    async def acknowledge(
        self, first: int, last: int, kind: bytes = ACCEPT, member: str = "m"
    ) -> None:
        code = await self.worker.acknowledge(self.led, first, last, kind, member)
        assert code is ErrorCode.NONE


@asynccontextmanager
async def queue(server: RedisServer, *, cache_bytes: int = 1 << 20) -> AsyncIterator[Queue]:
    async with (
        working(server) as worker,
        Host(server.url, cache_bytes=cache_bytes) as host,
    ):
        log = await host.create(f"queue-{next(_numbers)}")
        await log.current()
        led = await worker.shares.take(worker.group())
        yield Queue(worker, host, led, log)


def sent(taken: Taken) -> list[tuple[int, int]]:
    """The batches of a reply."""
    return [
        (header.base_offset, header.next_offset - 1)
        for piece in taken.records
        for header in headers(piece)
    ]


@pytest.mark.parametrize("cache_bytes", [1 << 20, 0], ids=["tail", "store"])
async def test_9_8_whole_batches_and_no_others(server: RedisServer, cache_bytes: int) -> None:
    async with queue(server, cache_bytes=cache_bytes) as one:
        await one.append(3, 4, 5)
        taken = await one.fetch(most=4)
        assert taken.ranges == [(0, 6, 1)]
        assert sent(taken) == [(0, 2), (3, 6)]
        assert (await one.fetch("n")).ranges == [(7, 11, 1)]
        assert await one.fetch("n") == Taken([], [])


@pytest.mark.parametrize("cache_bytes", [1 << 20, 0], ids=["tail", "store"])
async def test_9_24_what_is_far_apart_comes_in_one_reply(
    server: RedisServer, cache_bytes: int
) -> None:
    async with queue(server, cache_bytes=cache_bytes) as one:
        await one.append(*[1] * 60)
        await one.fetch(most=50)
        await one.acknowledge(10, 10, RELEASE)
        await one.acknowledge(30, 31, RELEASE)
        taken = await one.fetch("n")
        assert taken.ranges == [(10, 10, 2), (30, 31, 2), (50, 59, 1)]
        assert sent(taken) == [(o, o) for o in (10, 30, 31, *range(50, 60))]


async def test_9_24_reads_go_on_while_there_is_room(server: RedisServer) -> None:
    """Each read has few bytes, and ends before the next record that is available."""
    async with queue(server) as one:
        await one.append(*[1] * 40)
        await one.fetch(most=40)
        for offset in range(0, 40, 10):
            await one.acknowledge(offset, offset, RELEASE)
        size = len(batch())
        taken = await one.fetch("n", limit=3 * size)
        assert taken.ranges == [(0, 0, 2), (10, 10, 2), (20, 20, 2)]
        assert (await one.fetch("n", limit=1)).ranges == [(30, 30, 2)]


async def test_records_that_were_delivered_often_come_alone(server: RedisServer) -> None:
    async with queue(server) as one:
        one.worker.limits = ShareLimits(delivery_count=3)
        await one.append(1, 1, 1)
        for _ in range(2):
            assert (await one.fetch(most=1)).ranges[0][:2] == (0, 0)
            await one.acknowledge(0, 0, RELEASE)
        assert (await one.fetch()).ranges == [(0, 0, 3)]
        assert (await one.fetch()).ranges == [(1, 2, 1)]


async def test_9_16_the_start_follows_the_log(server: RedisServer) -> None:
    async with queue(server) as one:
        await one.append(10, 10)
        await one.fetch(most=1)
        await one.log.delete_records(15)
        taken = await one.fetch("n")
        assert one.led.machine.start == 15
        assert taken.ranges == [(15, 19, 1)]
        await one.acknowledge(0, 9)
        await one.log.delete_records(-1)
        assert await one.fetch("n") == Taken([], [])
        assert one.led.machine.start == 20


@pytest.mark.parametrize("cache_bytes", [1 << 20, 0], ids=["tail", "store"])
async def test_9_26_committed_reads(server: RedisServer, cache_bytes: int) -> None:
    async with queue(server, cache_bytes=cache_bytes) as one:
        one.client = Client(reads_committed=True)
        one.host.coordinator = coordinator = Coordinator()
        first, second = Participant(coordinator, 7), Participant(coordinator, 8)
        await first.write(one.log, ("a", "aborted"), ("b", "aborted"))  # 0, 1
        await one.append(2)  # 2, 3
        await second.write(one.log, ("c", "committed"))  # 4
        assert await one.fetch() == Taken([], [])  # nothing is stable yet
        await first.end(one.log, commit=False)  # 5
        assert (await one.fetch()).ranges == [(2, 3, 1)]
        await second.end(one.log, commit=True)  # 6
        await one.append(1)  # 7
        taken = await one.fetch("n")
        assert taken.ranges == [(4, 4, 1), (7, 7, 1)]
        await one.acknowledge(2, 3)
        await one.acknowledge(4, 4, member="n")
        assert one.led.machine.start == 7


async def test_9_17_markers_are_passed_by_uncommitted_reads(server: RedisServer) -> None:
    async with queue(server) as one:
        one.host.coordinator = coordinator = Coordinator()
        producer = Participant(coordinator, 7)
        await producer.write(one.log, ("a", "open"))
        assert (await one.fetch()).ranges == [(0, 0, 1)]
        await producer.end(one.log, commit=False)
        await one.append(1)
        assert (await one.fetch()).ranges == [(2, 2, 1)]
        await one.acknowledge(0, 0)
        assert one.led.machine.start == 2


async def test_one_read_from_the_store_at_a_time(server: RedisServer) -> None:
    async with queue(server, cache_bytes=0) as one:
        await one.append(*[1] * 5)
        found = await asyncio.gather(*(one.fetch(f"m{n}") for n in range(5)))
        assert sorted(len(taken.ranges) for taken in found) == [0, 0, 0, 0, 1]


# --- parked fetches ---


class ParkedFetch:
    def __init__(self, queue: Queue, member: str) -> None:
        self.queue = queue
        self.member = member
        self.served_times = 0
        self.taken: Taken | None = None
        queue.parking.park(self, queue.led, queue.log)

    def serve(self, led: Led, served: Callable[[bool], None]) -> None:
        self.served_times += 1

        def done(taken: Taken) -> None:
            is_over = bool(taken.ranges) or taken.error is not ErrorCode.NONE
            if is_over:
                self.taken = taken
                self.queue.parking.leave(self, led)
            served(is_over)

        one = self.queue
        ShareRead(
            one.worker.shares, led, one.log, one.client, self.member, Wish(1, 500), 1 << 20, done
        ).start()


@pytest.mark.parametrize("cache_bytes", [1 << 20, 0], ids=["tail", "store"])
async def test_9_23_one_record_is_for_one_of_a_hundred(
    server: RedisServer, cache_bytes: int
) -> None:
    async with queue(server, cache_bytes=cache_bytes) as one:
        parked = [ParkedFetch(one, f"m{number}") for number in range(100)]
        for number in range(3):
            await one.append(1)
            await until(lambda number=number: parked[number].taken)  # type: ignore[misc]
            await asyncio.sleep(0.05)
        assert [fetch.taken is not None for fetch in parked] == [True] * 3 + [False] * 97
        assert [taken.ranges for each in parked[:3] if (taken := each.taken)] == [
            [(number, number, 1)] for number in range(3)
        ]
        # The next one looks each time and finds nothing; nobody behind it is asked.
        assert sum(fetch.served_times for fetch in parked[4:]) == 0
        await one.acknowledge(1, 1, RELEASE, member="m1")
        await until(lambda: parked[3].taken)
        assert parked[3].taken is not None
        assert parked[3].taken.ranges == [(1, 1, 2)]
        one.worker.shares.leave(one.led.key.group_id, "m3")
        await until(lambda: parked[4].taken)
        await one.append(1, 1, 1)
        await until(lambda: parked[7].taken)
        assert not parked[8].taken


async def test_9_15_an_acknowledgement_at_the_start_wakes_a_fetch(server: RedisServer) -> None:
    async with queue(server) as one:
        one.worker.limits = ShareLimits(max_records=5)
        await one.append(*[1] * 8)
        assert (await one.fetch()).ranges == [(0, 4, 1)]
        parked = ParkedFetch(one, "n")
        await one.acknowledge(2, 3)
        await asyncio.sleep(0.05)
        assert parked.taken is None
        await one.acknowledge(0, 0)
        await until(lambda: parked.taken)
        taken: Taken | None = parked.taken
        assert taken is not None
        assert taken.ranges == [(5, 5, 1)]


async def test_9_20_parked_fetches_learn_that_their_share_partition_is_gone(
    server: RedisServer,
) -> None:
    async with queue(server) as one:
        parked = [ParkedFetch(one, f"m{number}") for number in range(3)]
        one.worker.shares.drop(one.led, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        await until(lambda: all(each.taken for each in parked))
        for each in parked:
            assert each.taken == Taken([], [], ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert len(one.parking) == 0
        assert not one.log.waiters
