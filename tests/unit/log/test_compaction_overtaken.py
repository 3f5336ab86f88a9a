"""Compaction while others read, compact or delete, and what a fault in the middle of it leaves."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from moldau.broker.errors import KafkaError, StoreFault, StoreUnavailable
from moldau.broker.log.keeping import cleaning_pass, compaction
from moldau.broker.log.partition import PartitionLog
from moldau.broker.log.reading import reader as reader_module
from moldau.broker.log.reading import store_read
from moldau.broker.log.reading.reader import LogReader
from moldau.broker.log.reading.timestamps import (
    LogPosition,
    batches_from,
)
from moldau.broker.store import keys
from moldau.broker.store.pipe import Pipe, command
from moldau.broker.wire.records import Record, read_records
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
from tests.support.drivers.log_host import Host, until
from tests.support.raw.calls import StoredLog
from tests.support.stores.redis_server import RedisServer


async def test_a_reader_that_was_not_notified_sees_no_hole(
    server: RedisServer, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows the log as it was one or more passes ago: streams are gone, entries trimmed."""
    monkeypatch.setattr(cleaning_pass, "ENTRY_SIZE", 200)
    monkeypatch.setattr(compaction, "GRACE_S", 0)

    async with Host(server.url, "a") as one, Host(server.url, "b") as two:
        cleaner = Cleaner(one, await create(one))
        log = cleaner.log
        views = []
        for _ in range(4):
            for number in range(30):
                await write(log, (f"key-{random.Random(number).randrange(40)}", "x"))
            views.append((log.start, log.reader.start_bytes, log.reader.clean))
            assert await cleaner.run()
        truth = await read_on(log)
        stored = StoredLog(store, log.topic)
        await until(lambda: stored.generations == [stored.clean_key])
        reader = two.log(log.topic)
        await reader.current()
        for view, limit, offset in itertools.product(views, (1, 150, 5000), range(log.end)):
            reader.reader.start, reader.reader.start_bytes, reader.reader.clean = view
            seen = await read_on(reader, offset, limit)
            assert seen == [record for record in truth if record.offset >= offset]


async def test_a_scan_that_is_overtaken_begins_again(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look-up by time is half way through the log when its streams are replaced."""
    monkeypatch.setattr(cleaning_pass, "ENTRY_SIZE", 200)
    monkeypatch.setattr(compaction, "GRACE_S", 0)
    monkeypatch.setattr(store_read, "FIRST_COUNT", 1)
    monkeypatch.setattr(reader_module, "SCAN_BYTES", 1)

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
        async for batch in batches_from(reader.reader, 0):
            seen += read_records(batch, 1 << 30)
            if seen[-1].offset in (21, 61, 101):
                await write(log, ("twice", "y"), at=NOW + 60)
                assert await cleaner.run()
                await asyncio.sleep(0.02)  # for the old generation to be dropped
        assert {f"key-{number}".encode() for number in range(60)} <= {r.key for r in seen}
        assert [r.offset for r in seen] == sorted({r.offset for r in seen})


async def test_one_pass_at_a_time(server: RedisServer, store: Any) -> None:
    async with Host(server.url, "a") as one, Host(server.url, "b") as two:
        first = Cleaner(one, await create(one))
        second = Cleaner(two, first.log.topic)
        for number in range(5):
            await write(first.log, ("a", f"{number}"))
        await second.log.current()
        lease = keys.cleaner(first.log.key)
        store.set(lease, "another worker")
        assert not await first.run()
        store.delete(lease)
        outcomes = await asyncio.gather(*(one.run() for one in (first, second) * 3))
        assert any(outcomes)
        await first.log.load_start()
        assert first.log.reader.clean.end == 4
        assert store.get(lease) is None
        check_size(first.log, store)


async def compact(quick: Cleaner) -> None:
    await quick.run()


async def delete(quick: Cleaner) -> None:
    await quick.retention.delete_before(quick.log, 3)


@pytest.mark.parametrize("meanwhile", [compact, delete])
async def test_a_pass_that_slept_through_its_lease_changes_nothing(
    server: RedisServer,
    store: Any,
    monkeypatch: pytest.MonkeyPatch,
    meanwhile: Callable[[Cleaner], Awaitable[None]],
) -> None:
    """Another worker compacted the log meanwhile, or moved its start."""
    monkeypatch.setattr(compaction, "GRACE_S", 0)

    async with Host(server.url, "a") as one, Host(server.url, "b") as two:
        slow = Cleaner(one, await create(one))
        for number in range(6):
            await write(slow.log, (f"key-{number % 2}", f"{number}"))
        quick = Cleaner(two, slow.log.topic)
        cover = slow.compaction._cover

        async def sleep(partition: PartitionLog, end: int) -> None:
            store.delete(keys.cleaner(partition.reader.key))
            await quick.log.current()
            await meanwhile(quick)
            await cover(partition, end)

        monkeypatch.setattr(slow.compaction, "_cover", sleep)
        assert not await slow.run()
        monkeypatch.undo()
        await slow.log.load_start()
        assert slow.log.reader.layout == quick.log.reader.layout
        check_size(slow.log, store)
        newest = {"key-0": (4, "4"), "key-1": (5, "5")}
        assert contents(await read_on(slow.log, slow.log.start)) == newest
        stored = StoredLog(store, slow.log.topic)
        assert set(stored.generations) <= {stored.clean_key}


async def test_no_switch_without_a_snapshot(
    server: RedisServer, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known of producers would be trimmed with the entries it follows from."""

    async with Host(server.url) as host:
        cleaner = Cleaner(host, await create(host))
        for number in range(6):
            await write(cleaner.log, ("a", f"{number}"))

        async def save_nothing() -> None: ...

        monkeypatch.setattr(cleaner.log, "save_snapshot", save_nothing)
        assert not await cleaner.run()
        assert not await cleaner.retention.enforce(cleaner.log, config(), NOW)
        await cleaner.retention.delete_before(cleaner.log, 4)
        stored = StoredLog(store, cleaner.log.topic)
        assert (stored.entries(), stored.generations) == (6, [])
        monkeypatch.undo()
        await cleaner.retention.enforce(cleaner.log, config(), NOW)
        assert stored.entries() == 2, "trimmed later"
        assert await cleaner.run()


async def test_deleting_records_overtaken_by_a_pass(
    server: RedisServer, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes before the new start were counted in a log that is another one by then."""

    async with Host(server.url, "a") as one, Host(server.url, "b") as two:
        slow = Cleaner(one, await create(one))
        quick = Cleaner(two, slow.log.topic)
        for number in range(12):
            await write(slow.log, (f"key-{number % 5}", f"{number}"))
        find = slow.retention._edge_before
        found = []

        async def overtaken(log: LogReader, offset: int) -> LogPosition:
            found.append(await find(log, offset))
            if len(found) == 1:
                assert await quick.run()
            return found[-1]

        monkeypatch.setattr(slow.retention, "_edge_before", overtaken)
        assert await slow.retention.delete_before(slow.log, 9) == 9
        assert len(found) > 1
        check_size(slow.log, store)
        await quick.log.load_start()
        check_size(quick.log, store)


@pytest.mark.parametrize("is_sent", [False, True], ids=["not sent", "answer lost"])
async def test_a_fault_at_any_step_leaves_the_log_whole(
    server: RedisServer, store: Any, monkeypatch: pytest.MonkeyPatch, is_sent: bool
) -> None:
    """A fault acts as a crash there would: a new worker finds the old log or the new one."""
    monkeypatch.setattr(cleaning_pass, "ENTRY_SIZE", 150)
    monkeypatch.setattr(cleaning_pass, "INDEX_EVERY", 200)
    monkeypatch.setattr(compaction, "GRACE_S", 0)

    async def fails_at(step: int) -> bool:
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
            assert not store.keys(b"*" + log.key + b"*")
        return was_hit

    step = 0
    while await fails_at(step):
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
        self._send[pipe](parts if self._is_sent else (command("PING"),), lambda _: done(fault))

    def lift(self) -> None:
        for pipe, send in self._send.items():
            pipe.send = send  # type: ignore[method-assign]


@pytest.mark.parametrize("at", ["begin", "drop_leftovers", "append", "index", "switch", None])
async def test_a_deleted_log_leaves_nothing_behind(
    server: RedisServer, store: Any, at: str | None
) -> None:
    """Deleted before, in the middle of, and after a pass."""

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
        assert not store.keys(b"*" + log.key + b"*")
