"""Logs with recorded gaps, against a real store: no reader stops at one, or skips more."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from moldau.broker.log.keeping.archived import Archived
from moldau.broker.log.partition import PartitionLog
from moldau.broker.log.reading import reader, store_read
from moldau.broker.log.reading.timestamps import offset_for_timestamp, offset_of_largest_timestamp
from moldau.broker.settings.kafka import TopicConfig, topic_config
from moldau.broker.store import keys
from moldau.broker.wire.batch import find_batch
from tests.support.drivers.cleaner import NOW, check_size, read_on
from tests.support.drivers.log_host import Host, append, stored
from tests.support.raw.client import make_batch
from tests.support.stores.gaps import lose_and_go_on
from tests.support.stores.redis_server import RedisServer
from tests.unit.log.log_batches import plain

GAP = (6, 1000)
_names = (f"gap-{number}" for number in itertools.count())


@pytest.fixture(autouse=True)
def no_complaints(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A gap that is recorded is not worth a line."""
    caplog.set_level(logging.WARNING, "moldau")
    yield
    assert not caplog.records


def stamped(offset: int) -> bytearray:
    """A record whose timestamp is 10 times its offset."""
    return make_batch([(b"%d" % offset, b"v%d" % offset, offset * 10)])


async def with_gap(host: Host, store: Any, entries_after: int = 4) -> PartitionLog:
    """Offsets 0 to 5, an entry each, then 1000 and on; 6 to 9 were there and are lost."""
    log = await host.create(next(_names))
    for offset in range(10):
        assert await append(log, stamped(offset)) == offset
    lose_and_go_on(store, log.key, *GAP)
    log = host.log(log.topic)
    await log.current()
    assert (log.start, log.end, log.leader_epoch) == (0, GAP[1], 1)
    for offset in range(GAP[1], GAP[1] + entries_after):
        assert await append(log, stamped(offset)) == offset
    return log


def existing(log: PartitionLog, first: int = 0) -> list[int]:
    return [at for at in (*range(GAP[0]), *range(GAP[1], log.end)) if at >= first]


INTERESTING = (0, 3, 5, 6, 7, 500, 998, 999, 1000, 1001, 1003)


@pytest.mark.parametrize("limit", [1, 150, 1 << 20])
async def test_reading_from_any_offset(server: RedisServer, store: Any, limit: int) -> None:
    async with Host(server.url) as host:
        log = await with_gap(host, store)
        for offset in INTERESTING:
            seen = await read_on(log, offset, limit)
            assert [record.offset for record in seen] == existing(log, offset)


async def test_pages_that_end_at_the_gap(
    server: RedisServer, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Host(server.url) as host:
        log = await with_gap(host, store)
        for entries in range(1, 8):
            monkeypatch.setattr(store_read, "FIRST_COUNT", entries)
            monkeypatch.setattr(store_read, "MAX_ENTRIES_PER_READ", entries)
            monkeypatch.setattr(reader, "MAX_ENTRIES_PER_READ", entries)
            for offset in INTERESTING:
                seen = await read_on(log, offset)
                assert [record.offset for record in seen] == existing(log, offset)
                found = [entry.base async for entry in log.reader.scan(offset)]
                assert found == existing(log, offset)


async def test_nothing_after_the_gap_yet(server: RedisServer, store: Any) -> None:
    async with Host(server.url) as host:
        log = await with_gap(host, store, entries_after=0)
        for offset in range(GAP[0], 20):
            assert await read_on(log, offset) == []
            assert [entry async for entry in log.reader.scan(offset)] == []
            assert log.reader.read_tail(offset, 1000, at_least_one=True) in (None, [])
        assert [record.offset for record in await read_on(log, 3)] == [3, 4, 5]


async def test_the_tail_cache_holds_what_follows_the_gap(server: RedisServer, store: Any) -> None:
    async with Host(server.url) as host:
        log = await host.create(next(_names))
        await append(log, plain(b"before"))
        lose_and_go_on(store, log.key, 1, 1000)
        log = host.log(log.topic)
        await log.current()
        assert await append(log, plain(b"after")) == 1000
        assert log.reader.tail.start == 1000
        assert log.reader.read_tail(0, 1000, at_least_one=True) is None
        assert log.reader.read_tail(500, 1000, at_least_one=True) is None
        (cached,) = log.reader.read_tail(1000, 1000, at_least_one=True) or []
        assert find_batch(cached, 1000) == 0


async def test_what_was_lost_is_not_served_from_memory(server: RedisServer, store: Any) -> None:
    async with Host(server.url) as host:
        log = await host.create(next(_names))
        await append(log, plain(b"kept"))
        await append(log, plain(b"lost"))
        assert log.reader.read_tail(1, 1000, at_least_one=True)
        lose_and_go_on(store, log.key, 1, 1000)
        await log.load_start()
        assert log.leader_epoch == 1
        assert not log.reader.read_tail(1, 1000, at_least_one=True)


async def test_a_scan_under_which_the_end_was_lost_starts_over(
    server: RedisServer, store: Any
) -> None:
    async with Host(server.url) as host:
        log = await host.create(next(_names))
        for offset in range(40):
            await append(log, stamped(offset))
        scan = log.reader.scan(0)
        assert (await anext(scan)).base == 0
        lose_and_go_on(store, log.key, 20, 1000)
        with pytest.raises(reader.LogMoved):
            async for _ in scan:
                pass


async def test_by_timestamp(server: RedisServer, store: Any) -> None:
    async with Host(server.url) as host:
        log = await with_gap(host, store)
        for timestamp, offset in ((0, 0), (45, 5), (51, 1000), (65, 1000), (10_001, 1001)):
            found = await offset_for_timestamp(host.streams, log.reader, timestamp)
            assert found is not None
            assert found.offset == offset
        assert await offset_for_timestamp(host.streams, log.reader, 10_031) is None
        newest = await offset_of_largest_timestamp(log.reader)
        assert newest is not None
        assert newest.offset == 1003


@pytest.mark.parametrize("point", [5, 6, 7, 9, 1000])
async def test_index_points_at_a_gap(server: RedisServer, store: Any, point: int) -> None:
    """One for a lost offset would also count lost bytes. It is removed with a new epoch; one that
    a worker sends too late is not used."""
    async with Host(server.url) as host:
        log = await with_gap(host, store)
        entries = await stored(host, log)
        size = sum(len(entry.blob) for entry in entries if entry.base < point)
        if point in (7, 9):
            size += 10_000
        host.streams.index(log.key, min(point, 6) * 10 - 10, point, size)
        await log.current()
        for timestamp, offset in ((45, 5), (51, 1000), (10_001, 1001)):
            found = await offset_for_timestamp(host.streams, log.reader, timestamp)
            assert found is not None
            assert found.offset == offset
        await log.delete_records(1002)
        assert log.reader.size == sum(len(entry.blob) for entry in entries[-2:])


@pytest.mark.parametrize("offset", INTERESTING[1:])
async def test_deleting_records(server: RedisServer, store: Any, offset: int) -> None:
    """Any offset can be the log start, also one that does not exist."""
    async with Host(server.url) as host:
        log = await with_gap(host, store)
        assert await log.delete_records(offset) == offset
        assert log.start == offset
        check_size(log, store)
        assert [r.offset for r in await read_on(log, offset)] == existing(log, offset)
        assert [e.base for e in await stored(host, log)] == existing(log, offset)
        again = host.log(log.topic)
        await again.current()
        assert (again.start, again.end, again.leader_epoch) == (offset, log.end, 1)
        assert await append(again, plain(b"more")) == log.end


async def test_everything_deleted_up_to_the_gap_s_end(server: RedisServer, store: Any) -> None:
    async with Host(server.url) as host:
        log = await with_gap(host, store, entries_after=0)
        assert await log.delete_records(-1) == GAP[1]
        assert log.start == log.end == GAP[1]
        again = host.log(log.topic)
        await again.current()
        assert (again.start, again.end) == GAP[1:] * 2
        assert await append(again, plain(b"more")) == GAP[1]


async def test_epochs_that_the_log_start_has_passed_are_dropped(
    server: RedisServer, store: Any
) -> None:
    async with Host(server.url) as host:
        log = await with_gap(host, store)
        lose_and_go_on(store, log.key, 1002, 2000)
        lose_and_go_on(store, log.key, 2000, 3000)
        log = host.log(log.topic)
        await log.current()
        for start, left in (
            (5, b"1:1000:6 2:2000:1002 3:3000:2000"),
            (1000, b"1:1000:6 2:2000:1002 3:3000:2000"),
            (2500, b"2:2000:1002 3:3000:2000"),
            (3000, b"3:3000:2000"),
        ):
            await log.delete_records(start)
            assert store.hget(keys.state(log.key), "epochs") == left
            assert log.epochs.text == left
            assert log.leader_epoch == 3
            again = host.log(log.topic)
            await again.current()
            assert (again.epochs.text, again.start, again.end) == (left, start, 3000)


def kept(**configs: object) -> TopicConfig:
    return topic_config({name.replace("_", "."): str(value) for name, value in configs.items()})


@pytest.mark.parametrize(
    ("before", "start"), [(31, 4), (50, 5), (51, 6), (9_000, 6), (10_001, 1001)]
)
async def test_retention_by_time(server: RedisServer, store: Any, before: int, start: int) -> None:
    async with Host(server.url) as host:
        log = await with_gap(host, store)
        await log.enforce_retention(kept(retention_ms=1), before + 1)
        assert log.start == start
        check_size(log, store)
        assert [r.offset for r in await read_on(log, start)] == existing(log, start)


async def test_retention_by_size(server: RedisServer, store: Any) -> None:
    async with Host(server.url) as host:
        log = await with_gap(host, store)
        entries = await stored(host, log)
        sizes = [len(entry.blob) for entry in entries]
        for left in range(len(sizes) - 1, 0, -1):
            limit = sum(sizes[-left:])
            await log.enforce_retention(kept(retention_ms=-1, retention_bytes=limit), NOW)
            assert log.start == (GAP[0] if left == 4 else entries[-left].base)
            seen = await read_on(log, log.start)
            assert [r.offset for r in seen] == [entry.base for entry in entries[-left:]]
            assert log.reader.size == limit


async def test_the_lake_has_everything_before_a_gap(
    server: RedisServer, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is up to date when it has what there is: retention neither waits nor complains."""

    async def until(self: Archived, topic: str, partition: int) -> int:
        return GAP[0]

    monkeypatch.setattr(Archived, "until", until)
    config = kept(remote_storage_enable="true", local_retention_ms=1)
    async with Host(server.url) as host:
        log = await with_gap(host, store)
        await log.enforce_retention(config, 5_000)
        assert log.start == GAP[0]


async def test_a_hole_that_is_not_recorded_is_reported(
    server: RedisServer, store: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with Host(server.url) as host:
        log = await with_gap(host, store)
        store.xdel(log.key, b"0-1")
        found = [entry.base async for entry in log.reader.scan(0)]
        assert found == [1, 2, 3, 4, 5, *range(1000, 1004)]
        assert "has a hole" in caplog.text
        caplog.clear()
