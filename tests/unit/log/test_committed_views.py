"""read_committed while a log is compacted and trimmed: nothing aborted, nothing missing."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from moldau.broker.log.keeping import cleaning_pass, compaction
from moldau.broker.log.partition import PartitionLog
from moldau.broker.log.reading import committed
from moldau.broker.log.state import transactions
from moldau.broker.wire.batch import CONTROL
from tests.support.drivers.cleaner import NOW, Cleaner, check_size, contents, create, read_on, write
from tests.support.drivers.committed_client import read_committed
from tests.support.drivers.log_host import Host, append
from tests.support.raw.client import make_batch
from tests.support.stores.redis_server import RedisServer
from tests.unit.log.transaction_history import (
    Contents,
    History,
    check_seen,
    cleaned_batches,
    indexed,
    participants,
)

READS = 50  # by each reader


@pytest.mark.parametrize("seed", range(10))
async def test_random_histories(
    server: RedisServer, store: Any, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Two workers write, compact and delete; a third one is not notified of anything."""
    monkeypatch.setattr(cleaning_pass, "ENTRY_SIZE", 300)
    monkeypatch.setattr(compaction, "GRACE_S", 0)
    monkeypatch.setattr(transactions, "HELD_IN_MEMORY", 4)
    monkeypatch.setattr(committed, "PAGE", 3)
    rng = random.Random(seed)
    hosts = [Host(server.url, name, snapshot_entries=9) for name in ("a", "b")]
    async with hosts[0] as one, hosts[1] as two:
        name = await create(one)
        cleaners = [Cleaner(one, name), Cleaner(two, name)]
        history = History(rng, participants(one, 4))
        two.coordinator = one.coordinator
        model, silent = history.model, two.log(name)
        now, start = NOW, 0
        for step in range(60):
            cleaner = rng.choice(cleaners)
            log = cleaner.log
            for _ in range(rng.randint(0, 6)):
                await history.write(log, step)
            await log.current()
            action = rng.random()
            now += 1
            if action < 0.5:
                await cleaner.run(now, delete_retention_ms=0)
            elif action < 0.58:
                start = rng.randint(start, log.end)
                await cleaner.retention.delete_before(log, start)
            elif action < 0.65:
                await log.save_snapshot()
            fresh = one.log(name)
            await fresh.current()
            for each in (log, silent, fresh):
                await each.current()
                stable = each.bounds()[3]
                offset = rng.randint(start, max(stable, start))
                limit = rng.choice((1, 200, 1000, 1 << 20))
                from_store = rng.random() < 0.5
                seen = await read_committed(each, offset, limit, from_store=from_store)
                check_seen(model, seen, offset, stable, (seed, step))
            await log.load_start()
            stored = contents(await read_on(log, start))
            for records in model.open.values():
                for at, (key, _) in records.items():
                    assert at < start or stored[key][0] >= at, "open ones are left alone"
            check_size(log, store)
            if log.reader.clean.generation:
                for header in await cleaned_batches(one, log):
                    assert not header.attributes & CONTROL
                    assert header.base_offset not in model.aborted
        for producer in history.producers:
            if producer.is_open:
                await producer.end(cleaners[0].log, commit=True)
                model.end(producer.producer, commit=True)
        await append(cleaners[0].log, make_batch([(b"last", b"1", NOW)]))
        for _ in range(3):
            now += 1
            await cleaners[0].run(now, delete_retention_ms=0)
        log = cleaners[0].log
        everything = await read_on(log, log.start)
        newest = model.newest(log.start, log.end)
        left = {key: at for key, at in contents(everything).items() if at[1] is not None}
        del left["last"]
        assert left == {key: at for key, at in newest.items() if at[1] is not None}


async def test_two_views_at_once(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers on two workers while a third one writes, aborts and compacts all the time.

    The records of an answer may be old by the time they arrive, and the reader's knowledge of where
    the log lies newer, or the reverse.
    """
    monkeypatch.setattr(cleaning_pass, "ENTRY_SIZE", 300)
    monkeypatch.setattr(cleaning_pass, "LONGEST_REST_S", 0)
    monkeypatch.setattr(compaction, "GRACE_S", 0)
    monkeypatch.setattr(transactions, "HELD_IN_MEMORY", 4)
    monkeypatch.setattr(committed, "PAGE", 3)
    rng = random.Random(1)
    names = ("writer", "one", "two")
    hosts = [Host(server.url, name, snapshot_entries=15) for name in names]
    async with hosts[0] as host, hosts[1] as one, hosts[2] as two:
        name = await create(host)
        cleaner = Cleaner(host, name)
        history = History(rng, participants(host, 3))
        model = history.model
        reads = {"one": 0, "two": 0}
        ended = asyncio.Event()

        async def write_on() -> None:
            for step in itertools.count():
                await history.write(cleaner.log, step)
                await asyncio.sleep(0.003 * rng.random())
                if min(reads.values()) >= READS and step >= READS:
                    break
            ended.set()

        async def compact_on() -> None:
            now = NOW
            while not ended.is_set():
                now += 1
                await cleaner.run(now, delete_retention_ms=0)
                await asyncio.sleep(0.001)

        async def read_on_and_on(which: str, reading: Host, log: PartitionLog) -> None:
            _answer_late(reading, rng)
            while not ended.is_set():
                await log.current()
                stable = log.bounds()[3]
                offset = rng.randint(0, stable)
                limit = rng.choice((200, 1000, 1 << 20))
                seen = await read_committed(log, offset, limit, from_store=rng.random() < 0.7)
                check_seen(model, seen, offset, stable, (which, offset, limit))
                reads[which] += 1

        async def notify(log: PartitionLog) -> None:
            while not ended.is_set():
                await log.load_start()
                await asyncio.sleep(0.003 * rng.random())

        first, second = one.log(name), two.log(name)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(write_on())
            tasks.create_task(compact_on())
            tasks.create_task(read_on_and_on("one", one, first))
            tasks.create_task(read_on_and_on("two", two, second))
            tasks.create_task(notify(first))
        assert cleaner.log.reader.clean.generation > 5
        assert model.aborted


async def compact_twice(cleaner: Cleaner) -> None:
    for number in range(2):
        await write(cleaner.log, ("last", f"{number}"))
        assert await cleaner.run()


async def delete_some(cleaner: Cleaner) -> None:
    await cleaner.retention.delete_before(cleaner.log, 12)


@pytest.mark.parametrize("meanwhile", [compact_twice, delete_some])
async def test_a_list_from_which_some_were_dropped_meanwhile(
    server: RedisServer,
    store: Any,
    monkeypatch: pytest.MonkeyPatch,
    meanwhile: Callable[[Cleaner], Awaitable[None]],
) -> None:
    """A worker that has read records sleeps before it asks which of them were aborted."""
    monkeypatch.setattr(compaction, "GRACE_S", 0)
    monkeypatch.setattr(transactions, "HELD_IN_MEMORY", 0)
    async with Host(server.url) as host, Host(server.url, "other") as other_host:
        cleaner = Cleaner(host, await create(host))
        log = cleaner.log
        good, bad = participants(host, 2)
        expected: Contents = {}
        for number in range(10):
            producer, commit = (good, True) if number % 2 else (bad, False)
            base = await producer.write(log, (f"key-{number}", "1"))
            await producer.end(log, commit=commit)
            if commit:
                expected[f"key-{number}"] = (base, "1")
        await log.save_snapshot()
        reader = other_host.log(log.topic)
        await reader.current()
        read_on = committed._StoredAborted.read_on
        asleep: list[asyncio.Future[None]] = []

        def sleep(self: Any, marker: int) -> None:
            if asleep:
                read_on(self, marker)
                return

            async def go_on() -> None:
                await meanwhile(cleaner)
                read_on(self, marker)

            asleep.append(asyncio.ensure_future(go_on()))

        monkeypatch.setattr(committed._StoredAborted, "read_on", sleep)
        seen = contents(await read_committed(reader))
        assert asleep[0].done()
        seen.pop("last", None)
        assert seen == {key: at for key, at in expected.items() if at[0] >= reader.start}
        assert len(indexed(store, log)) < 5


def _answer_late(host: Host, rng: random.Random) -> None:
    """Records reach the reader a moment after the store has sent them."""
    streams = host.streams
    read, read_more = streams.read, streams.read_on

    def later(step: Any) -> Any:
        def wrapped(key: bytes, offset: int, count: int, done: Any) -> None:
            def delayed(entries: Any) -> None:
                loop = asyncio.get_running_loop()
                loop.call_later(0.004 * rng.random(), done, entries)

            step(key, offset, count, delayed)

        return wrapped

    streams.read = later(read)  # type: ignore[method-assign]
    streams.read_on = later(read_more)  # type: ignore[method-assign]
