"""Compaction of logs with recorded gaps, against a real store."""

from __future__ import annotations

import random
from typing import Any

import pytest

from moldau.broker.log.keeping import cleaning_pass, compaction
from moldau.broker.log.keeping.cleaning import KeyMap
from moldau.broker.wire.batch import read_header
from moldau.broker.wire.records import read_records
from tests.support.drivers.cleaner import NOW, Cleaner, check_size, contents, create, read_on, write
from tests.support.drivers.log_host import Host, stored
from tests.support.stores.gaps import lose_and_go_on
from tests.support.stores.redis_server import RedisServer


async def test_compaction_across_a_gap(server: RedisServer, store: Any) -> None:
    async with Host(server.url) as host:
        cleaner = Cleaner(host, await create(host))
        await write(cleaner.log, ("a", "1"), ("b", "1"))
        await write(cleaner.log, ("a", "2"))
        await write(cleaner.log, ("b", "lost"))
        lose_and_go_on(store, cleaner.log.key, 3, 1_000_000_000)
        cleaner = Cleaner(host, cleaner.log.topic)
        log = cleaner.log
        await log.current()
        await write(log, ("c", "1"))
        await write(log, ("a", "3"))
        assert await cleaner.run()
        first = 1_000_000_000
        expected = [(1, b"b", b"1"), (first, b"c", b"1"), (first + 1, b"a", b"3")]
        for offset in (0, 1, 2, 3, 500, first - 1, first, first + 1):
            seen = await read_on(log, offset)
            assert [(r.offset, r.key, r.value) for r in seen] == [
                record for record in expected if record[0] >= offset
            ]
        assert log.reader.clean.end == first + 1
        check_size(log, store)
        assert not await cleaner.run()


async def test_the_key_map_is_not_made_for_lost_offsets(
    server: RedisServer, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    class Map(KeyMap):
        def __init__(self, capacity: int) -> None:
            sizes.append(capacity)
            super().__init__(capacity)

    monkeypatch.setattr(cleaning_pass, "KeyMap", Map)
    async with Host(server.url) as host:
        topic = await create(host)
        for number in range(3):
            await write(host.log(topic), (f"key-{number}", "value"))
        lose_and_go_on(store, host.log(topic).key, 3, 1_000_000)
        for number in range(4):
            await write(host.log(topic), (f"key-{number}", "value"))
        assert await Cleaner(host, topic).run()
        assert sizes == [7]


async def test_a_pass_that_ends_at_the_gap(server: RedisServer, store: Any) -> None:
    """What is before it is old enough to be cleaned, what is behind it is not."""
    async with Host(server.url) as host:
        cleaner = Cleaner(host, await create(host))
        for value in "123":
            await write(cleaner.log, ("a", value), at=NOW - 10_000)
        lose_and_go_on(store, cleaner.log.key, 3, 1000)
        cleaner = Cleaner(host, cleaner.log.topic)
        log = cleaner.log
        await log.current()
        await write(log, ("a", "4"), at=NOW)
        await write(log, ("a", "5"), at=NOW)
        assert await cleaner.run(min_compaction_lag_ms=5_000)
        assert log.reader.clean.end == 1000
        for offset in (0, 2, 3, 700, 1000, 1001):
            seen = await read_on(log, offset)
            assert [r.offset for r in seen] == [at for at in (2, 1000, 1001) if at >= offset]
        assert await cleaner.run(NOW + 10_000, min_compaction_lag_ms=5_000)
        assert [r.offset for r in await read_on(log)] == [1001]
        check_size(log, store)


async def test_a_pass_that_lost_entries_is_not_switched_to(
    server: RedisServer, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store went back to an earlier state while it was written."""
    monkeypatch.setattr(cleaning_pass, "ENTRY_SIZE", 1)
    async with Host(server.url) as host:
        cleaner = Cleaner(host, await create(host))
        log = cleaner.log
        for number in range(10):
            await write(log, (f"key-{number}", "value"))

        cover = cleaner.compaction._cover

        async def lose_one(*words: Any) -> None:
            await cover(*words)
            (generation,) = store.keys(b"*" + log.key + b"*:clean:*")
            ((entry_id, _),) = store.xrevrange(generation, count=1)
            store.xdel(generation, entry_id)

        monkeypatch.setattr(cleaner.compaction, "_cover", lose_one)
        assert not await cleaner.run()
        assert len(await read_on(log)) == 10
        monkeypatch.undo()
        assert await cleaner.run()
        assert len(await read_on(log)) == 10


@pytest.mark.parametrize("seed", range(6))
async def test_random_histories(
    server: RedisServer, store: Any, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Appends, losses, passes and deletions at random; what consumers see is what was kept."""
    monkeypatch.setattr(cleaning_pass, "ENTRY_SIZE", 300)
    monkeypatch.setattr(compaction, "GRACE_S", 0)
    rng = random.Random(seed)
    async with Host(server.url) as host:
        cleaner = Cleaner(host, await create(host))
        written: list[tuple[int, str, str]] = []
        settled = 0  # what a pass has read is not lost: a store loses the newest
        losses = 0
        for step in range(40):
            log = cleaner.log
            await log.current()
            for _ in range(rng.randint(0, 5)):
                pairs = [
                    (f"key-{rng.randrange(9)}", f"{step}-{at}") for at in range(rng.randint(1, 3))
                ]
                base = await write(log, *pairs)
                written += [(base + i, key, value) for i, (key, value) in enumerate(pairs)]
            action = rng.random()
            if action < 0.3:
                await cleaner.run()
                settled = log.end
            elif action < 0.4:
                start = rng.randint(log.start, log.end)
                assert await log.delete_records(start) == start
                settled = max(settled, log.end)
            elif action < 0.7 and log.end > settled:
                bases = [entry.base for entry in await stored(host, log) if entry.base >= settled]
                end = rng.choice([*bases, log.end])
                written = [one for one in written if one[0] < end]
                lose_and_go_on(
                    store, log.key, end, log.end + rng.randint(0, 50), log_start=log.start
                )
                losses += 1
                cleaner = Cleaner(host, log.topic)
                log = cleaner.log
                await log.current()
                assert log.leader_epoch == losses
            offset = rng.randint(log.start, log.end)
            seen = await read_on(log, offset)
            newest = {key: (at, value) for at, key, value in written}
            assert contents(seen) == {
                key: found for key, found in newest.items() if found[0] >= offset
            }
            check_size(log, store)
        for entry in await stored(host, log):
            header = read_header(entry.blob)
            assert header.base_offset == entry.base
            assert list(read_records(entry.blob[: header.size], 1 << 20))
        assert losses
