"""Retention and DeleteRecords in a log with transactions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from moldau.broker.log.partition import PartitionLog
from tests.support.drivers.cleaner import NOW, Cleaner, check_size, config, create, write
from tests.support.drivers.committed_client import read_committed
from tests.support.drivers.log_host import Host
from tests.support.stores.redis_server import RedisServer
from tests.unit.log.transaction_history import indexed, participants


async def committed_offsets(log: PartitionLog) -> list[int]:
    both = [
        [record.offset for record in await read_committed(log, log.start, from_store=from_store)]
        for from_store in (False, True)
    ]
    assert both[0] == both[1]
    return both[0]


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("start", [1, 2, 3, 5])
async def test_7_22_deleting_into_an_open_transaction(
    server: RedisServer, store: Any, start: int, commit: bool
) -> None:
    """The new start is at the edge of a batch, or inside one."""
    async with Host(server.url) as host, Host(server.url, "other") as other_host:
        cleaner = Cleaner(host, await create(host))
        log, other = cleaner.log, other_host.log(cleaner.log.topic)
        (producer,) = participants(host, 1)
        await producer.write(log, ("a", "1"), ("b", "1"))  # 0, 1
        await write(log, ("x", "1"))  # 2
        await producer.write(log, ("c", "1"), ("d", "1"))  # 3, 4
        await write(log, ("y", "1"))  # 5
        await producer.write(log, ("e", "1"))  # 6
        await other.current()
        assert await cleaner.retention.delete_before(log, start) == start
        await other.load_start()
        fresh = host.log(log.topic)
        await fresh.current()
        for each in (log, other, fresh):
            assert each.bounds() == (start, 7, 7, start)
            assert await committed_offsets(each) == []
            assert each.committed.is_at_end(start)
        check_size(log, store)
        await producer.end(other, commit=commit)  # 7
        visible = [0, 1, 2, 3, 4, 5, 6] if commit else [2, 5]
        for each in (log, other, fresh):
            await each.current()
            assert each.bounds() == (start, 8, 8, 8)
            assert await committed_offsets(each) == [at for at in visible if at >= start]


@pytest.mark.parametrize("commit", [True, False])
async def test_7_22_retention_into_an_open_transaction(
    server: RedisServer, store: Any, commit: bool
) -> None:
    async with Host(server.url) as host:
        cleaner = Cleaner(host, await create(host))
        log = cleaner.log
        (producer,) = participants(host, 1)
        for number in range(10):
            await producer.write(log, ("a", f"{number}"), at=NOW + number)
            await write(log, ("x", f"{number}"), at=NOW + number)
        assert await cleaner.retention.enforce(log, config(retention_ms=5), NOW + 10)
        assert log.bounds() == (10, 20, 20, 10)
        assert await cleaner.retention.enforce(log, config(retention_bytes=600), NOW)
        start = log.start
        assert start > 10
        assert log.bounds() == (start, 20, 20, start)
        check_size(log, store)
        async with Host(server.url, "other") as other_host:
            # Nothing is left of its first batch, but the snapshot has the transaction.
            other = other_host.log(log.topic)
            await other.current()
            assert other.bounds() == (start, 20, 20, start)
            await producer.end(other, commit=commit)
            await log.current()
            for each in (log, other):
                expected = [at for at in range(start, 20) if commit or at % 2]
                assert await committed_offsets(each) == expected


async def test_aborted_transactions_below_the_log_start_are_forgotten(
    server: RedisServer, store: Any
) -> None:
    async with Host(server.url) as host, Host(server.url, "other") as other_host:
        cleaner = Cleaner(host, await create(host))
        log, other = cleaner.log, other_host.log(cleaner.log.topic)
        one, two = participants(host, 2)
        await one.write(log, ("a", "1"))  # 0
        for _ in range(3):
            await two.write(log, ("b", "1"))  # 1, 3, 5
            await two.end(log, commit=False)  # 2, 4, 6
        await one.end(log, commit=False)  # 7
        await write(log, ("x", "1"))  # 8
        await other.current()
        await log.save_snapshot()
        assert indexed(store, log) == [2, 4, 6, 7]
        await cleaner.retention.delete_before(log, 4)
        assert indexed(store, log) == [4, 6, 7]
        await other.load_start()
        for each in (log, other):
            held = each.reader.state.transactions.aborted
            assert [aborted.marker for aborted in held] == [4, 6, 7]
            assert await committed_offsets(each) == [8]
        # What this one had not saved is not needed any more either.
        await other.save_snapshot()
        assert indexed(store, log) == [4, 6, 7]
        await cleaner.retention.delete_before(log, 8)
        assert not indexed(store, log)
        assert not log.reader.state.transactions.aborted
        assert await committed_offsets(log) == [8]


async def test_two_snapshots_at_once_leave_nothing_unsaved(server: RedisServer, store: Any) -> None:
    async with Host(server.url) as host:
        cleaner = Cleaner(host, await create(host))
        log = cleaner.log
        (producer,) = participants(host, 1)
        markers = []
        for _ in range(6):
            await producer.write(log, ("a", "1"))
            await producer.end(log, commit=False)
            markers.append(log.end - 1)
            await asyncio.gather(*(log.save_snapshot() for _ in range(3)))
            assert indexed(store, log) == markers
