"""Reading ahead of consumers that catch up: what they get, and what it costs the store."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from itertools import count, pairwise
from typing import Any

import pytest
import redis

from moldau.broker.errors import StoreFault
from moldau.broker.log.partition import PartitionLog
from moldau.broker.log.reading import store_read
from moldau.broker.wire.batch import headers
from tests.support.drivers.fake_peers import until
from tests.support.drivers.log_host import Host, append
from tests.support.stores.gaps import lose_and_go_on
from tests.support.stores.redis_server import RedisServer
from tests.unit.log.log_batches import plain

LIMIT = 2_000
_names = (f"ahead-{number}" for number in count())


@pytest.fixture
def store(server: RedisServer) -> Iterator[Any]:
    with redis.from_url(server.url) as client:
        yield client


class Calls:
    """The reads that reach the store: searches for an offset, and reads from an entry's edge."""

    def __init__(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        self.searches = self.reads_on = 0
        search, read_on = host.streams.read, host.streams.read_on

        def searched(*words: Any) -> None:
            self.searches += 1
            search(*words)

        def read(*words: Any) -> None:
            self.reads_on += 1
            read_on(*words)

        monkeypatch.setattr(host.streams, "read", searched)
        monkeypatch.setattr(host.streams, "read_on", read)


async def filled(host: Host, entries: int = 100, size: int = 300) -> PartitionLog:
    """Entries of one record each. None of them is in the tail cache."""
    log = await host.create(next(_names))
    for number in range(entries):
        await append(log, plain(b"%d " % number + b"x" * size))
    log.reader.tail.clear()
    return log


async def read(log: PartitionLog, offset: int, limit: int = LIMIT) -> list[int]:
    """One read from the store: the base offsets of its batches."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    log.reader.read_store(offset, limit, at_least_one=True, done=future.set_result)
    got = await future
    if isinstance(got, StoreFault):
        raise got
    return [header.base_offset for part in got for header in headers(part)]


async def settled(host: Host) -> None:
    """What is read ahead has arrived."""
    await host.streams.first_entries(b"nothing", 0, 1)


async def test_the_third_read_in_a_row_is_there_already(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Host(server.url) as host:
        log = await filled(host)
        calls = Calls(host, monkeypatch)
        first = await read(log, 0)
        assert (calls.searches, host.read_ahead.held > 0) == (1, True), "what did not fit is kept"
        second = await read(log, first[-1] + 1)
        await settled(host)
        before = calls.reads_on
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        log.reader.read_store(second[-1] + 1, LIMIT, at_least_one=True, done=future.set_result)
        assert future.done(), "no reply of the store was waited for"
        assert calls.searches == 1
        assert calls.reads_on == before + 1, "the next was read ahead at once"


async def test_one_that_comes_before_the_reply_waits_for_it(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Host(server.url) as host:
        log = await filled(host)
        calls = Calls(host, monkeypatch)
        seen: list[int] = []
        while not seen or seen[-1] < 99:
            seen += await read(log, seen[-1] + 1 if seen else 0)
        assert seen == list(range(100))
        assert calls.searches == 1
        assert host.read_ahead.held == 0


@pytest.mark.parametrize("seed", range(8))
async def test_readers_get_everything_once_whatever_happens(
    server: RedisServer, store: Any, seed: int
) -> None:
    """Several readers with limits of their own, while the log grows, is trimmed, loses its end."""
    choose = random.Random(seed)
    async with Host(server.url) as host:
        log = await filled(host, 60, size=choose.choice([50, 300, 1500]))
        positions = dict.fromkeys(range(4), 0)
        seen: dict[int, list[int]] = {reader: [] for reader in positions}
        gaps: list[tuple[int, int]] = []
        for _ in range(150):
            what = choose.random()
            if what < 0.85:
                reader = choose.choice(list(positions))
                offset = max(positions[reader], log.start)
                got = await read(log, offset, choose.choice([1, 700, LIMIT, 20_000]))
                if got:
                    seen[reader] += got
                    positions[reader] = got[-1] + 1
            elif what < 0.93:
                for _ in range(choose.randrange(1, 9)):
                    await append(log, plain(b"y" * choose.choice([10, 900])))
                log.reader.tail.clear()
            elif what < 0.97:
                await log.delete_records(choose.randrange(log.start, log.end + 1))
            elif not gaps:
                begin = log.end + 40
                lose_and_go_on(store, log.key, log.end, begin)
                gaps.append((log.end, begin))
                log = host.log(log.topic)
                await log.current()
        for offsets in seen.values():
            assert offsets == sorted(set(offsets))
            for before, after in pairwise(offsets):
                skipped = after - before - 1
                assert not skipped or after <= log.start or _is_gap(before + 1, after, gaps, log)
        assert host.read_ahead.held <= host.read_ahead.budget


def _is_gap(first: int, after: int, gaps: list[tuple[int, int]], log: PartitionLog) -> bool:
    """Everything that was skipped is in a gap, or was trimmed before it was read."""
    return any(begin >= first and end <= after for begin, end in gaps) or first < log.start


async def test_what_was_trimmed_meanwhile_is_not_served(server: RedisServer) -> None:
    async with Host(server.url) as host:
        log = await filled(host)
        first = await read(log, 0)
        second = await read(log, first[-1] + 1)
        await settled(host)
        await log.delete_records(90)
        assert await read(log, second[-1] + 1) == []
        assert (await read(log, 90))[0] == 90


async def test_what_is_not_used_is_dropped(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_read, "UNUSED_S", 0.05)
    async with Host(server.url) as host:
        log = await filled(host)
        first = await read(log, 0)
        second = await read(log, first[-1] + 1)
        await settled(host)
        ahead = host.read_ahead
        # On a busy machine some of it is dropped even before the second read.
        await until(lambda: ahead.unused > 0 and not ahead.held)
        assert (await read(log, second[-1] + 1))[0] == second[-1] + 1


async def test_the_budget_holds_for_all_readers_together(server: RedisServer) -> None:
    async with Host(server.url) as host:
        ahead = host.read_ahead
        ahead.budget = 3 * LIMIT
        logs = [await filled(host, 40) for _ in range(6)]
        positions = [0] * len(logs)
        for _ in range(4):
            for number, log in enumerate(logs):
                positions[number] = (await read(log, positions[number]))[-1] + 1
                assert ahead.held <= ahead.budget
        await settled(host)
        assert 0 < ahead.held <= ahead.budget


async def test_a_deleted_log_holds_nothing(server: RedisServer) -> None:
    async with Host(server.url) as host:
        log = await filled(host)
        await read(log, (await read(log, 0))[-1] + 1)
        assert host.read_ahead.held > 0
        log.gone()
        assert host.read_ahead.held == 0
        await settled(host)
        assert host.read_ahead.held == 0
