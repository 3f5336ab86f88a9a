"""Compaction against a real store: what stays, what readers see meanwhile, what a fault leaves."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import redis
import uvloop

from broker.configs import TopicConfig, topic_config
from broker.errors import KafkaError, StoreFault, StoreUnavailable
from broker.log import cleaning_pass, compaction, reading
from broker.log.archived import Archived
from broker.log.compaction import Compaction
from broker.log.partition import PartitionLog
from broker.log.retention import Retention
from broker.log.times import (
    Place,
    batches_from,
    offset_for_timestamp,
    offset_of_largest_timestamp,
)
from broker.store import keys, resp
from broker.store.cleaned import Cleaned
from broker.store.groups import GroupStore
from broker.store.pipe import Pipe
from broker.store.topics import TopicStore
from broker.wire.batch import read_header, split_batches
from broker.wire.records import Record, read_records
from tests.support.log_host import Host, append, until
from tests.support.raw_calls import StoredLog
from tests.support.raw_client import make_batch
from tests.support.redis_server import RedisServer

NOW = 1_700_000_000_000
EAGER = {"cleanup.policy": "compact,delete", "retention.ms": "-1", "min.cleanable.dirty.ratio": "0"}
_names = (f"compacted-{number}" for number in itertools.count())


@pytest.fixture
def store(server: RedisServer) -> Iterator[Any]:
    with redis.from_url(server.url) as client:
        yield client


class Cleaner:
    """A host with what housekeeping has, and a log of its own view."""

    def __init__(self, host: Host, topic: str) -> None:
        self.host = host
        self.log = host.log(topic)
        archived = Archived(GroupStore(host.control), lambda topic: None)
        self.retention = Retention(host.streams, TopicStore(host.control), archived)
        self.compaction = Compaction(host.streams, Cleaned(host.bulk, host.control), self.retention)

    async def run(self, now_ms: int = NOW, **configs: object) -> bool:
        await self.log.current()
        return await self.compaction.compact(self.log, config(**configs), now_ms)


def config(**changed: object) -> TopicConfig:
    chosen = {name.replace("_", "."): str(value) for name, value in changed.items()}
    return topic_config({**EAGER, **chosen})


async def create(host: Host) -> str:
    name = next(_names)
    await host.create(name)
    return name


async def write(log: PartitionLog, *pairs: tuple[str, str | None], at: int = NOW) -> int:
    """One batch in an entry of its own: (key, value) records."""
    records = [
        (key.encode(), None if value is None else value.encode(), at) for key, value in pairs
    ]
    return await append(log, make_batch(records))


async def read_on(log: PartitionLog, offset: int = 0, limit: int = 1 << 20) -> list[Record]:
    """Read to the end, from the store and not from the tail cache, as consumers do."""
    records: list[Record] = []
    while offset < log.end:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        log.read_store(offset, limit, at_least_one=True, done=future.set_result)
        got = await future
        if isinstance(got, StoreFault):
            raise got
        batches = [batch for part in got for batch in split_batches(part)]
        if not batches:
            break
        for batch in batches:
            records += [r for r in read_records(batch, 1 << 30) if r.offset >= offset]
        offset = read_header(batches[-1]).next_offset
    return records


def contents(records: list[Record]) -> dict[str, tuple[int, str | None]]:
    """Key to offset and value of its last record."""
    return {
        (record.key or b"").decode(): (
            record.offset,
            None if record.value is None else record.value.decode(),
        )
        for record in records
    }


def check_size(log: PartitionLog, store: Any) -> None:
    """What DescribeLogDirs would say is what lies in the store."""
    assert log.size == StoredLog(store, log.topic).bytes_from(log.start)


def test_the_newest_of_each_key_stays(server: RedisServer, store: Any) -> None:
    async def run() -> None:
        async with Host(server.url) as host:
            cleaner = Cleaner(host, await create(host))
            log = cleaner.log
            await write(log, ("a", "1"), ("b", "1"), ("c", "1"))
            await write(log, ("a", "2"), ("d", "1"))
            await write(log, ("d", "2"))
            await write(log, ("b", "2"), ("e", "1"))  # the last entry is not touched, but counts
            assert await cleaner.run()
            expected = [(2, "c", "1"), (3, "a", "2"), (5, "d", "2"), (6, "b", "2"), (7, "e", "1")]
            for offset in range(8):
                seen = await read_on(log, offset)
                assert [(r.offset, r.key, r.value) for r in seen] == [
                    (at, key.encode(), value.encode())
                    for at, key, value in expected
                    if at >= offset
                ]
            assert log.clean.end == 6
            assert (log.start, log.end) == (0, 8)
            check_size(log, store)
            stored = StoredLog(store, log.topic)
            assert (stored.entries(), stored.clean_entries()) == (1, 1)
            assert not await cleaner.run(), "nothing is dirty"

    uvloop.run(run())


def test_random_histories(server: RedisServer, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two writers, passes and deletions at random; a reader that nobody tells of anything."""
    monkeypatch.setattr(cleaning_pass, "ENTRY_SIZE", 300)
    monkeypatch.setattr(compaction, "GRACE_S", 0)

    async def run(seed: int) -> None:
        rng = random.Random(seed)
        async with Host(server.url, "a") as one, Host(server.url, "b") as two:
            name = await create(one)
            cleaners = [Cleaner(one, name), Cleaner(two, name)]
            reader = two.log(name)
            newest: dict[str, tuple[int, str | None]] = {}
            start = 0
            for step in range(60):
                cleaner = rng.choice(cleaners)
                log = cleaner.log
                for _ in range(rng.randint(0, 6)):
                    pairs = [
                        (f"key-{rng.randrange(12)}", f"{step}-{rng.random()}")
                        for _ in range(rng.randint(1, 4))
                    ]
                    base = await write(log, *pairs)
                    newest |= {key: (base + i, value) for i, (key, value) in enumerate(pairs)}
                await log.current()
                action = rng.random()
                if action < 0.5:
                    await cleaner.run()
                elif action < 0.6:
                    start = await cleaner.retention.delete_records(log, rng.randint(start, log.end))
                await reader.current()
                offset = rng.randint(max(reader.start, start), log.end)
                limit = rng.choice((1, 200, 1000, 1 << 20))
                seen = await read_on(reader, offset, limit)
                kept = {key: at for key, at in newest.items() if at[0] >= offset}
                assert {key: at for key, at in contents(seen).items() if key in kept} == kept
                assert [r.offset for r in seen] == sorted({r.offset for r in seen})
                await log.load_start()
                check_size(log, store)
                everything = contents(await read_on(log, log.start))
                assert everything == {key: at for key, at in newest.items() if at[0] >= log.start}

    for seed in range(8):
        uvloop.run(run(seed))


def test_a_reader_that_was_not_told_sees_no_hole(
    server: RedisServer, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows the log as it was one or more passes ago: streams are gone, entries trimmed."""
    monkeypatch.setattr(cleaning_pass, "ENTRY_SIZE", 200)
    monkeypatch.setattr(compaction, "GRACE_S", 0)

    async def run() -> None:
        async with Host(server.url, "a") as one, Host(server.url, "b") as two:
            cleaner = Cleaner(one, await create(one))
            log = cleaner.log
            views = []
            for _ in range(4):
                for number in range(30):
                    await write(log, (f"key-{random.Random(number).randrange(40)}", "x"))
                views.append((log.start, log.start_bytes, log.clean))
                assert await cleaner.run()
            truth = await read_on(log)
            stored = StoredLog(store, log.topic)
            await until(lambda: stored.generations == [stored.clean_key])
            reader = two.log(log.topic)
            await reader.current()
            for view, limit, offset in itertools.product(views, (1, 150, 5000), range(log.end)):
                reader.start, reader.start_bytes, reader.clean = view
                seen = await read_on(reader, offset, limit)
                assert seen == [record for record in truth if record.offset >= offset]

    uvloop.run(run())


def test_a_scan_that_is_overtaken_begins_again(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look-up by time is half way through the log when its streams are replaced."""
    monkeypatch.setattr(cleaning_pass, "ENTRY_SIZE", 200)
    monkeypatch.setattr(compaction, "GRACE_S", 0)
    monkeypatch.setattr(reading, "FIRST_COUNT", 1)
    monkeypatch.setattr(reading, "SCAN_BYTES", 1)

    async def run() -> None:
        async with Host(server.url, "a") as one, Host(server.url, "b") as two:
            cleaner = Cleaner(one, await create(one))
            log, reader = cleaner.log, two.log(cleaner.log.topic)
            for number in range(40):
                await write(log, (f"key-{number}", "x"), ("twice", "x"), at=NOW + number)
            assert await cleaner.run()
            for number in range(40, 60):
                await write(log, (f"key-{number}", "x"), ("twice", "x"), at=NOW + number)
            await reader.current()
            seen: list[Record] = []
            async for batch in batches_from(reader, 0):
                seen += read_records(batch, 1 << 30)
                if seen[-1].offset in (21, 61, 101):
                    await write(log, ("twice", "y"), at=NOW + 60)
                    assert await cleaner.run()
                    await asyncio.sleep(0.02)  # for the old generation to be dropped
            assert {f"key-{number}".encode() for number in range(60)} <= {r.key for r in seen}
            assert [r.offset for r in seen] == sorted({r.offset for r in seen})

    uvloop.run(run())


def test_time_and_size_over_both_parts(
    server: RedisServer, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Look-ups and retention find their way by the index of the cleaned part, and by the other."""
    monkeypatch.setattr(cleaning_pass, "ENTRY_SIZE", 4000)
    monkeypatch.setattr(cleaning_pass, "INDEX_EVERY", 8000)

    async def run() -> None:
        async with Host(server.url) as host:
            cleaner = Cleaner(host, await create(host))
            log, streams = cleaner.log, host.streams
            for number in range(200):
                value = random.Random(number).randbytes(400).hex()
                await write(log, (f"key-{number % 150}", value), at=NOW + 10 * number)
            assert await cleaner.run()
            for number in range(200, 220):
                await write(log, (f"key-{number}", "x"), at=NOW + 10 * number)
            assert len(await streams.index_points(log.clean_key)) > 5
            kept = await read_on(log)
            for when in range(NOW - 5, NOW + 2200, 35):
                expected = next((r.offset for r in kept if r.timestamp >= when), None)
                found = await offset_for_timestamp(streams, log, when)
                assert (found.offset if found else None) == expected
            newest = await offset_of_largest_timestamp(log)
            assert newest == (219, NOW + 2190)

            by_time = config(retention_ms=2000)
            assert await cleaner.retention.enforce(log, by_time, NOW + 3000)
            old = [r for r in kept if r.timestamp < NOW + 1000]
            # Entries go as wholes, and those of the cleaned part hold several batches.
            assert old[-1].offset - 15 < log.start <= old[-1].offset + 1
            check_size(log, store)
            before = log.size
            by_size = config(retention_bytes=before // 2)
            assert await cleaner.retention.enforce(log, by_size, NOW)
            assert before // 2 <= log.size < before // 2 + 5000
            check_size(log, store)
            assert await cleaner.retention.enforce(log, config(retention_bytes=500), NOW)
            assert log.start > log.clean.end, "past the border"
            assert StoredLog(store, log.topic).clean_entries() == 0
            check_size(log, store)
            assert [r.offset for r in await read_on(log, log.start)] == [*range(log.start, 220)]

    uvloop.run(run())


def test_the_largest_timestamp_may_be_compacted_away(server: RedisServer) -> None:
    async def run() -> None:
        async with Host(server.url) as host:
            cleaner = Cleaner(host, await create(host))
            log = cleaner.log
            await write(log, ("a", "1"), at=NOW + 20)
            await write(log, ("b", "1"), at=NOW + 90)
            await write(log, ("c", "1"), at=NOW + 40)
            await write(log, ("b", "2"), at=NOW + 10)
            await write(log, ("d", "1"), at=NOW + 30)
            assert await offset_of_largest_timestamp(log) == (1, NOW + 90)
            assert await cleaner.run()
            assert await offset_of_largest_timestamp(log) == (2, NOW + 40)
            await write(log, ("e", "1"), at=NOW + 50)
            assert await offset_of_largest_timestamp(log) == (5, NOW + 50)
            await write(log, ("f", "1"), at=NOW + 95)
            assert await offset_of_largest_timestamp(log) == (6, NOW + 95)
            await cleaner.retention.delete_records(log, 7)
            assert await offset_of_largest_timestamp(log) is None

    uvloop.run(run())


def test_tombstones_stay_for_delete_retention(server: RedisServer, store: Any) -> None:
    async def run() -> None:
        async with Host(server.url) as host:
            cleaner = Cleaner(host, await create(host))
            log = cleaner.log
            await write(log, ("a", "1"), ("b", "1"))
            await write(log, ("a", None))
            await write(log, ("z", "1"))
            assert await cleaner.run(NOW, delete_retention_ms=1000)
            expected = {"a": (2, None), "b": (1, "1"), "z": (3, "1")}
            assert contents(await read_on(log)) == expected
            assert not await cleaner.run(NOW + 999, delete_retention_ms=1000)
            # Nothing was written since: they go all the same.
            assert await cleaner.run(NOW + 1000, delete_retention_ms=1000)
            del expected["a"]
            assert contents(await read_on(log)) == expected
            check_size(log, store)
            assert not await cleaner.run(NOW + 5000, delete_retention_ms=1000)

    uvloop.run(run())


def test_the_log_may_begin_in_a_gap(
    server: RedisServer,
    store: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between two cleaned entries, and between the last of them and the live part."""
    monkeypatch.setattr(cleaning_pass, "ENTRY_SIZE", 1)

    async def run() -> None:
        async with Host(server.url, "a") as host, Host(server.url, "b") as other:
            cleaner = Cleaner(host, await create(host))
            log = cleaner.log
            await write(log, ("kept-0", "1"))
            for number in range(1, 6):
                await write(log, ("twice", f"{number}"))
            await write(log, ("kept-6", "1"))
            for number in range(7, 12):
                await write(log, ("twice", f"{number}"))
            await write(log, ("twice", "last"))
            assert await cleaner.run()
            told = other.log(log.topic)
            await told.current()
            for start, kept in ((3, [6, 12]), (8, [12]), (11, [12]), (12, [12])):
                assert await cleaner.retention.delete_records(log, start) == start
                await told.load_start()
                check_size(log, store)
                for each, offset in itertools.product((log, told), range(start, 13)):
                    expected = [at for at in kept if at >= offset]
                    assert [r.offset for r in await read_on(each, offset)] == expected
                found = await offset_for_timestamp(host.streams, log, 0)
                assert found == (kept[0], NOW)
            assert StoredLog(store, log.topic).clean_entries() == 0

    uvloop.run(run())
    assert not caplog.records


def test_nothing_may_be_left(server: RedisServer, store: Any) -> None:
    """Every key of the cleaned part was deleted: it is empty, and readers pass over it."""

    async def run() -> None:
        async with Host(server.url) as host:
            cleaner = Cleaner(host, await create(host))
            log = cleaner.log
            for number in range(20):
                await write(log, (f"key-{number}", "1"))
            for number in range(20):
                await write(log, (f"key-{number}", None))
            await write(log, ("last", "1"))
            assert await cleaner.run(NOW, delete_retention_ms=0)
            assert await cleaner.run(NOW + 1, delete_retention_ms=0)
            for offset in range(41):
                assert contents(await read_on(log, offset)) == {"last": (40, "1")}
            assert log.clean.entries == 0
            check_size(log, store)
            await write(log, ("more", "1"))
            assert await cleaner.run(NOW + 2)
            assert contents(await read_on(log)) == {"last": (40, "1"), "more": (41, "1")}
            check_size(log, store)

    uvloop.run(run())


def test_when_a_pass_is_due(server: RedisServer) -> None:
    async def run() -> None:
        async with Host(server.url) as host:
            cleaner = Cleaner(host, await create(host))
            log = cleaner.log

            async def ratio(**configs: object) -> float | None:
                await log.current()
                now_ms = int(str(configs.pop("now", NOW)))
                plan = await cleaner.compaction.plan(log, config(**configs), now_ms)
                return None if plan is None else plan.ratio

            half = "min_cleanable_dirty_ratio"
            assert await ratio() is None, "an empty log"
            await write(log, ("a", "1"))
            assert await ratio() is None, "the last entry does not count"
            await write(log, ("b", "1"))
            assert await ratio(**{half: 0.5}) == 1.0
            assert await cleaner.run()
            for number in range(3):
                await write(log, (f"c{number}", "1"))
            assert await ratio(**{half: 0.76}) is None
            assert await ratio(**{half: 0.74}) == pytest.approx(0.75, abs=0.01)

            # Records younger than min.compaction.lag.ms are left alone.
            await write(log, ("d", "1"), at=NOW + 500)
            await write(log, ("d", "2"), at=NOW + 600)
            assert await ratio(now=NOW + 50, min_compaction_lag_ms=100) is None
            assert await ratio(now=NOW + 100, min_compaction_lag_ms=100) is not None
            assert await cleaner.run(NOW + 599, min_compaction_lag_ms=100)
            assert log.clean.end == 5
            assert await cleaner.run(NOW + 600, min_compaction_lag_ms=100)
            assert log.clean.end == 6

            # The first record waits no longer than max.compaction.lag.ms, whatever the ratio.
            await write(log, ("e", "1"), at=NOW + 700)
            lag = {half: 1, "max_compaction_lag_ms": 1000}
            assert await ratio(now=NOW + 1600, **lag) is None
            assert await ratio(now=NOW + 1601, **lag) is not None

    uvloop.run(run())


def test_min_compaction_lag_is_about_the_record_itself(server: RedisServer) -> None:
    """An old record whose successor is too young to be looked at stays."""

    async def run() -> None:
        async with Host(server.url) as host:
            cleaner = Cleaner(host, await create(host))
            log = cleaner.log
            await write(log, ("a", "1"))
            await write(log, ("a", "2"))
            await write(log, ("b", "1"))
            await write(log, ("a", "3"), at=NOW + 500)
            await write(log, ("b", "2"), at=NOW + 500)
            assert await cleaner.run(NOW + 100, min_compaction_lag_ms=100)
            assert [r.offset for r in await read_on(log)] == [1, 2, 3, 4]
            assert await cleaner.run(NOW + 600, min_compaction_lag_ms=100)
            assert [r.offset for r in await read_on(log)] == [3, 4]

    uvloop.run(run())


def test_more_keys_than_fit(
    server: RedisServer, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass ends where its table is full; the next one goes on from there."""
    monkeypatch.setattr(cleaning_pass, "KEYS_AT_ONCE", 10)

    async def run() -> None:
        async with Host(server.url) as host:
            cleaner = Cleaner(host, await create(host))
            log = cleaner.log
            for number in range(30):
                await write(log, (f"key-{number % 20}", f"{number}"))
            await write(log, *((f"wide-{number}", "1") for number in range(50)))
            await write(log, ("last", "1"))
            ends = []
            while await cleaner.run():
                ends.append(log.clean.end)
                check_size(log, store)
            assert ends == [10, 20, 30, 80]
            expected = {f"key-{number % 20}": (number, f"{number}") for number in range(30)}
            expected |= {f"wide-{number}": (30 + number, "1") for number in range(50)}
            assert contents(await read_on(log)) == expected | {"last": (80, "1")}
            assert len(await read_on(log)) == 71

    uvloop.run(run())


def test_what_cannot_be_read_stays_as_it_is(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with Host(server.url) as host:
            cleaner = Cleaner(host, await create(host))
            log = cleaner.log
            await write(log, ("a", "1"))
            damaged = make_batch([(b"a", b"2", NOW)])
            damaged[61:] = b"\xff" * len(damaged[61:])
            await append(log, damaged)
            await write(log, ("a", "3"))
            await write(log, ("b", "1"))
            assert await cleaner.run()
            entries = await host.streams.first_entries(log.clean_key, 0, 10)
            offsets = [read_header(b).base_offset for e in entries for b in split_batches(e.blob)]
            assert offsets == [1, 2]
            assert "stays as it is" in caplog.text

    uvloop.run(run())


def test_one_pass_at_a_time(server: RedisServer, store: Any) -> None:
    async def run() -> None:
        async with Host(server.url, "a") as one, Host(server.url, "b") as two:
            first = Cleaner(one, await create(one))
            second = Cleaner(two, first.log.topic)
            for number in range(5):
                await write(first.log, ("a", f"{number}"))
            await second.log.current()
            lease = keys.cleaner(first.log.key)
            store.set(lease, "somebody")
            assert not await first.run()
            store.delete(lease)
            outcomes = await asyncio.gather(*(one.run() for one in (first, second) * 3))
            assert any(outcomes)
            await first.log.load_start()
            assert first.log.clean.end == 4
            assert store.get(lease) is None
            check_size(first.log, store)

    uvloop.run(run())


def test_a_pass_that_slept_through_its_lease_changes_nothing(
    server: RedisServer, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker compacted the log meanwhile, or moved its start."""
    monkeypatch.setattr(compaction, "GRACE_S", 0)

    async def run(meanwhile: Callable[[Cleaner], Awaitable[object]]) -> None:
        async with Host(server.url, "a") as one, Host(server.url, "b") as two:
            slow = Cleaner(one, await create(one))
            for number in range(6):
                await write(slow.log, (f"key-{number % 2}", f"{number}"))
            quick = Cleaner(two, slow.log.topic)
            cover = slow.compaction._cover

            async def sleep(log: PartitionLog, end: int) -> None:
                store.delete(keys.cleaner(log.key))
                await quick.log.current()
                await meanwhile(quick)
                await cover(log, end)

            monkeypatch.setattr(slow.compaction, "_cover", sleep)
            assert not await slow.run()
            monkeypatch.undo()
            await slow.log.load_start()
            assert slow.log.view == quick.log.view
            check_size(slow.log, store)
            newest = {"key-0": (4, "4"), "key-1": (5, "5")}
            assert contents(await read_on(slow.log, slow.log.start)) == newest
            stored = StoredLog(store, slow.log.topic)
            assert set(stored.generations) <= {stored.clean_key}

    async def delete(quick: Cleaner) -> None:
        await quick.retention.delete_records(quick.log, 3)

    uvloop.run(run(lambda quick: quick.run()))
    uvloop.run(run(delete))


def test_no_switch_without_a_snapshot(
    server: RedisServer, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known of producers would be trimmed with the entries it follows from."""

    async def run() -> None:
        async with Host(server.url) as host:
            cleaner = Cleaner(host, await create(host))
            for number in range(6):
                await write(cleaner.log, ("a", f"{number}"))

            async def save_nothing() -> None: ...

            monkeypatch.setattr(cleaner.log, "save_snapshot", save_nothing)
            assert not await cleaner.run()
            assert not await cleaner.retention.enforce(cleaner.log, config(), NOW)
            await cleaner.retention.delete_records(cleaner.log, 4)
            stored = StoredLog(store, cleaner.log.topic)
            assert (stored.entries(), stored.generations) == (6, [])
            monkeypatch.undo()
            await cleaner.retention.enforce(cleaner.log, config(), NOW)
            assert stored.entries() == 2, "trimmed later"
            assert await cleaner.run()

    uvloop.run(run())


def test_deleting_records_overtaken_by_a_pass(
    server: RedisServer, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes before the new start were counted in a log that is another one by then."""

    async def run() -> None:
        async with Host(server.url, "a") as one, Host(server.url, "b") as two:
            slow = Cleaner(one, await create(one))
            quick = Cleaner(two, slow.log.topic)
            for number in range(12):
                await write(slow.log, (f"key-{number % 5}", f"{number}"))
            find = slow.retention._edge_before
            found = []

            async def overtaken(log: PartitionLog, offset: int) -> Place:
                found.append(await find(log, offset))
                if len(found) == 1:
                    assert await quick.run()
                return found[-1]

            monkeypatch.setattr(slow.retention, "_edge_before", overtaken)
            assert await slow.retention.delete_records(slow.log, 9) == 9
            assert len(found) > 1
            check_size(slow.log, store)
            await quick.log.load_start()
            check_size(quick.log, store)

    uvloop.run(run())


@pytest.mark.parametrize("is_sent", [False, True], ids=["not sent", "answer lost"])
def test_a_fault_at_any_step_leaves_the_log_whole(
    server: RedisServer, store: Any, monkeypatch: pytest.MonkeyPatch, is_sent: bool
) -> None:
    """As a crash there would: what a new worker finds is the old log or the new one."""
    monkeypatch.setattr(cleaning_pass, "ENTRY_SIZE", 150)
    monkeypatch.setattr(cleaning_pass, "INDEX_EVERY", 200)
    monkeypatch.setattr(compaction, "GRACE_S", 0)

    async def run(step: int) -> bool:
        async with Host(server.url, "a") as host:
            cleaner = Cleaner(host, await create(host))
            log = cleaner.log
            expected: dict[str, tuple[int, str | None]] = {}
            for generation in range(2):
                for number in range(12):
                    key, value = f"key-{number % 5}", f"{generation}-{number}"
                    expected[key] = (await write(log, (key, value)), value)
                if generation == 0:
                    assert await cleaner.run()
            await log.current()
            faults = Faults((host.bulk, host.reads, host.control), step, is_sent)
            with contextlib.suppress(StoreFault):
                await cleaner.run()
            faults.lift()
            was_hit = faults.was_hit
        async with Host(server.url, "b") as host:
            after = Cleaner(host, log.topic)
            log = after.log
            await log.current()
            assert contents(await read_on(log)) == expected
            check_size(log, store)
            store.delete(keys.cleaner(log.key))  # or wait until it expires
            for number in range(12):
                key, value = f"key-{number % 6}", f"after-{number}"
                expected[key] = (await write(log, (key, value)), value)
            assert await after.run()
            assert contents(await read_on(log)) == expected
            assert len(await read_on(log)) == len(expected)
            check_size(log, store)
            stored = StoredLog(store, log.topic)
            await until(lambda: stored.generations == [stored.clean_key])
            assert stored.entries() == 1
            await host.streams.remove(log.key)
            assert not store.keys(log.key + b"*")
        return was_hit

    step = 0
    while uvloop.run(run(step)):
        step += 1
    assert step > 20, "there were steps to fail at"


class Faults:
    """The `step`-th command from now on meets a lost connection, before or after it was sent."""

    def __init__(self, pipes: tuple[Pipe, ...], step: int, is_sent: bool) -> None:
        self._left = step
        self._is_sent = is_sent
        self._pipes = pipes
        self._send = {pipe: pipe.send for pipe in pipes}
        self.was_hit = False
        for pipe in pipes:
            pipe.send = functools.partial(self._maybe, pipe)  # type: ignore[method-assign]

    def _maybe(self, pipe: Pipe, parts: Any, done: Callable[[Any], None]) -> None:
        self._left -= 1
        if self._left != -1:
            self._send[pipe](parts, done)
            return
        self.was_hit = True
        fault = StoreUnavailable("as ordered")
        # Something is sent in any case, so that answers come in order, as they do.
        self._send[pipe](parts if self._is_sent else (resp.command("PING"),), lambda _: done(fault))

    def lift(self) -> None:
        for pipe, send in self._send.items():
            pipe.send = send  # type: ignore[method-assign]


def test_a_deleted_log_leaves_nothing_behind(server: RedisServer, store: Any) -> None:
    """Deleted before, in the middle of, and after a pass."""

    async def run(at: str | None) -> None:
        async with Host(server.url) as host:
            cleaner = Cleaner(host, await create(host))
            log = cleaner.log
            for generation in range(2):
                for number in range(6):
                    await write(log, (f"key-{number % 2}", f"{number}"))
                if generation == 0:
                    assert await cleaner.run()
            cleaned = cleaner.compaction._cleaned
            if at is None:
                assert await cleaner.run()
                await host.streams.remove(log.key)
            else:
                step = getattr(cleaned, at)

                async def delete_first(*words: Any) -> Any:
                    await host.streams.remove(log.key)
                    return await step(*words)

                setattr(cleaned, at, delete_first)
                with contextlib.suppress(KafkaError):
                    assert not await cleaner.run()
            await log.save_snapshot()
            store.delete(keys.cleaner(log.key))
            assert not store.keys(log.key + b"*")

    for at in ("begin", "drop_leftovers", "append", "index", "switch", None):
        uvloop.run(run(at))
