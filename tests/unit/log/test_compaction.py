"""Compaction against a real store: what stays of a log, and when it is done."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from moldau.broker.log.keeping import cleaning_pass, compaction
from moldau.broker.log.reading.timestamps import (
    offset_for_timestamp,
    offset_of_largest_timestamp,
)
from moldau.broker.wire.batch import read_header, split_batches
from tests.support.drivers.cleaner import (
    NOW,
    Cleaner,
    check_size,
    config,
    contents,
    create,
    read_on,
    write,
)
from tests.support.drivers.log_host import Host, append
from tests.support.raw.calls import StoredLog
from tests.support.raw.client import make_batch
from tests.support.stores.redis_server import RedisServer


async def test_the_newest_of_each_key_stays(server: RedisServer, store: Any) -> None:
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
                (at, key.encode(), value.encode()) for at, key, value in expected if at >= offset
            ]
        assert log.reader.clean.end == 6
        assert (log.start, log.end) == (0, 8)
        check_size(log, store)
        stored = StoredLog(store, log.topic)
        assert (stored.entries(), stored.clean_entries()) == (1, 1)
        assert not await cleaner.run(), "nothing is dirty"


@pytest.mark.parametrize("seed", range(8))
async def test_random_histories(
    server: RedisServer, store: Any, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Two writers, passes and deletions at random; a reader that gets no notices."""
    monkeypatch.setattr(cleaning_pass, "ENTRY_SIZE", 300)
    monkeypatch.setattr(compaction, "GRACE_S", 0)

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
                start = rng.randint(start, log.end)
                assert await cleaner.retention.delete_before(log, start) == start
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


async def test_time_and_size_over_both_parts(
    server: RedisServer, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Look-ups and retention find their way by the index of the cleaned part, and by the other."""
    monkeypatch.setattr(cleaning_pass, "ENTRY_SIZE", 4000)
    monkeypatch.setattr(cleaning_pass, "INDEX_EVERY", 8000)

    async with Host(server.url) as host:
        cleaner = Cleaner(host, await create(host))
        log, streams = cleaner.log, host.streams
        for number in range(200):
            value = random.Random(number).randbytes(400).hex()
            await write(log, (f"key-{number % 150}", value), at=NOW + 10 * number)
        assert await cleaner.run()
        for number in range(200, 220):
            await write(log, (f"key-{number}", "x"), at=NOW + 10 * number)
        assert len(await streams.index_points(log.reader.clean_key)) > 5
        kept = await read_on(log)
        for when in range(NOW - 5, NOW + 2200, 35):
            expected = next((r.offset for r in kept if r.timestamp >= when), None)
            found = await offset_for_timestamp(streams, log.reader, when)
            assert (found.offset if found else None) == expected
        newest = await offset_of_largest_timestamp(log.reader)
        assert newest == (219, NOW + 2190)

        by_time = config(retention_ms=2000)
        assert await cleaner.retention.enforce(log, by_time, NOW + 3000)
        old = [r for r in kept if r.timestamp < NOW + 1000]
        # Entries go as wholes, and those of the cleaned part hold several batches.
        assert old[-1].offset - 15 < log.start <= old[-1].offset + 1
        check_size(log, store)
        before = log.reader.size
        by_size = config(retention_bytes=before // 2)
        assert await cleaner.retention.enforce(log, by_size, NOW)
        assert before // 2 <= log.reader.size < before // 2 + 5000
        check_size(log, store)
        assert await cleaner.retention.enforce(log, config(retention_bytes=500), NOW)
        assert log.start > log.reader.clean.end, "past the border"
        assert StoredLog(store, log.topic).clean_entries() == 0
        check_size(log, store)
        assert [r.offset for r in await read_on(log, log.start)] == [*range(log.start, 220)]


async def test_the_largest_timestamp_may_be_compacted_away(server: RedisServer) -> None:
    async with Host(server.url) as host:
        cleaner = Cleaner(host, await create(host))
        log = cleaner.log
        await write(log, ("a", "1"), at=NOW + 20)
        await write(log, ("b", "1"), at=NOW + 90)
        await write(log, ("c", "1"), at=NOW + 40)
        await write(log, ("b", "2"), at=NOW + 10)
        await write(log, ("d", "1"), at=NOW + 30)
        assert await offset_of_largest_timestamp(log.reader) == (1, NOW + 90)
        assert await cleaner.run()
        assert await offset_of_largest_timestamp(log.reader) == (2, NOW + 40)
        await write(log, ("e", "1"), at=NOW + 50)
        assert await offset_of_largest_timestamp(log.reader) == (5, NOW + 50)
        await write(log, ("f", "1"), at=NOW + 95)
        assert await offset_of_largest_timestamp(log.reader) == (6, NOW + 95)
        await cleaner.retention.delete_before(log, 7)
        assert await offset_of_largest_timestamp(log.reader) is None


async def test_tombstones_stay_for_delete_retention(server: RedisServer, store: Any) -> None:
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


async def test_the_log_may_begin_in_a_gap(
    server: RedisServer,
    store: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between two cleaned entries, and between the last of them and the live part."""
    monkeypatch.setattr(cleaning_pass, "ENTRY_SIZE", 1)

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
        notified = other.log(log.topic)
        await notified.current()
        for start, kept in ((3, [6, 12]), (8, [12]), (11, [12]), (12, [12])):
            assert await cleaner.retention.delete_before(log, start) == start
            await notified.load_start()
            check_size(log, store)
            for each, offset in itertools.product((log, notified), range(start, 13)):
                expected = [at for at in kept if at >= offset]
                assert [r.offset for r in await read_on(each, offset)] == expected
            found = await offset_for_timestamp(host.streams, log.reader, 0)
            assert found == (kept[0], NOW)
        assert StoredLog(store, log.topic).clean_entries() == 0
    assert not caplog.records


async def test_nothing_may_be_left(server: RedisServer, store: Any) -> None:
    """Every key of the cleaned part was deleted: it is empty, and readers pass over it."""

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
        assert log.reader.clean.entries == 0
        check_size(log, store)
        await write(log, ("more", "1"))
        assert await cleaner.run(NOW + 2)
        assert contents(await read_on(log)) == {"last": (40, "1"), "more": (41, "1")}
        check_size(log, store)


async def test_when_a_pass_is_due(server: RedisServer) -> None:
    async with Host(server.url) as host:
        cleaner = Cleaner(host, await create(host))
        log = cleaner.log

        async def ratio(**configs: object) -> float | None:
            await log.current()
            now_ms = int(str(configs.pop("now", NOW)))
            plan = await cleaner.compaction.plan(log.reader, config(**configs), now_ms)
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
        assert log.reader.clean.end == 5
        assert await cleaner.run(NOW + 600, min_compaction_lag_ms=100)
        assert log.reader.clean.end == 6

        # The first record waits no longer than max.compaction.lag.ms, whatever the ratio.
        await write(log, ("e", "1"), at=NOW + 700)
        lag = {half: 1, "max_compaction_lag_ms": 1000}
        assert await ratio(now=NOW + 1600, **lag) is None
        assert await ratio(now=NOW + 1601, **lag) is not None


async def test_min_compaction_lag_is_about_the_record_itself(server: RedisServer) -> None:
    """An old record whose successor is too young to be looked at stays."""

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


async def test_more_keys_than_fit(
    server: RedisServer, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass ends where its table is full; the next one goes on from there."""
    monkeypatch.setattr(cleaning_pass, "KEYS_AT_ONCE", 10)

    async with Host(server.url) as host:
        cleaner = Cleaner(host, await create(host))
        log = cleaner.log
        for number in range(30):
            await write(log, (f"key-{number % 20}", f"{number}"))
        await write(log, *((f"wide-{number}", "1") for number in range(50)))
        await write(log, ("last", "1"))
        ends = []
        while await cleaner.run():
            ends.append(log.reader.clean.end)
            check_size(log, store)
        assert ends == [10, 20, 30, 80]
        expected = {f"key-{number % 20}": (number, f"{number}") for number in range(30)}
        expected |= {f"wide-{number}": (30 + number, "1") for number in range(50)}
        assert contents(await read_on(log)) == expected | {"last": (80, "1")}
        assert len(await read_on(log)) == 71


async def test_what_cannot_be_read_stays_as_it_is(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
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
        entries = await host.streams.first_entries(log.reader.clean_key, 0, 10)
        offsets = [read_header(b).base_offset for e in entries for b in split_batches(e.blob)]
        assert offsets == [1, 2]
        assert "stays as it is" in caplog.text
