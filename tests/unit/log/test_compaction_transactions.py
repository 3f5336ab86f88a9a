"""Compaction of a log with transactions: what was aborted goes, what was committed stays."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.broker.log.keeping import compaction
from moldau.broker.log.partition import PartitionLog
from moldau.broker.log.reading import committed
from moldau.broker.log.reading.timestamps import offset_for_timestamp, offset_of_largest_timestamp
from moldau.broker.log.state import transactions
from moldau.broker.log.writing.append import Participation
from moldau.broker.store import keys
from moldau.broker.wire.batch import CONTROL, TRANSACTIONAL
from tests.support.drivers.cleaner import NOW, Cleaner, check_size, contents, create, read_on, write
from tests.support.drivers.committed_client import read_committed
from tests.support.drivers.log_host import Host, WaitedAppend, begin
from tests.support.drivers.transactional import end, records_batch
from tests.support.raw.calls import StoredLog
from tests.support.raw.client import make_batch
from tests.support.stores.redis_server import RedisServer
from tests.unit.log.transaction_history import Contents, cleaned_batches, indexed, participants


async def test_7_23_no_aborted_record_survives_or_deletes_a_key(
    server: RedisServer, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "GRACE_S", 0)
    async with Host(server.url) as host:
        cleaner = Cleaner(host, await create(host))
        log = cleaner.log
        good, bad, slow = participants(host, 3)
        await write(log, ("a", "1"), ("b", "1"), ("x", "1"))  # 0 to 2
        await good.write(log, ("a", "2"), ("c", "1"))  # 3, 4
        await bad.write(log, ("a", "wrong"), ("b", None), ("y", "wrong"))  # 5 to 7
        await good.end(log, commit=True)  # 8
        await bad.end(log, commit=False)  # 9
        await bad.write(log, ("d", "1"))  # 10
        await bad.end(log, commit=True)  # 11
        await slow.write(log, ("a", "open"), ("x", None))  # 12, 13
        await bad.write(log, ("d", "wrong"))  # 14
        await bad.end(log, commit=False)  # 15
        await write(log, ("b", "2"), ("z", "1"))  # 16, 17
        assert await cleaner.run()

        assert log.reader.clean.end == 12, "open transactions are left alone"
        left = await cleaned_batches(host, log)
        assert [header.base_offset for header in left] == [0, 3, 10], "no marker, nothing aborted"
        assert [header.attributes & TRANSACTIONAL for header in left] == [0, 16, 16]
        assert [header.producer_id for header in left] == [-1, 7, 8]
        before: Contents = {
            "b": (1, "1"), "x": (2, "1"), "a": (3, "2"), "c": (4, "1"), "d": (10, "1")
        }  # fmt: skip
        async with Host(server.url, "other") as other_host:
            other = other_host.log(log.topic)
            await other.current()
            for each in (log, other):
                assert contents(await read_committed(each)) == before
                # The others, who do not wait for transactions, see what is in the log.
                assert contents(await read_on(each))["a"] == (12, "open")
        check_size(log, store)
        assert not await cleaner.run(), "the rest is not stable"
        assert indexed(store, log) == [9, 15]

        await slow.end(log, commit=False)  # 18
        await bad.write(log, ("e", "1"))  # 19
        await bad.end(log, commit=True)  # 20
        await write(log, ("last", "1"))  # 21
        assert contents(await read_committed(log)) == before | {
            "b": (16, "2"), "z": (17, "1"), "e": (19, "1"), "last": (21, "1")
        }  # fmt: skip
        assert await cleaner.run()
        assert log.reader.clean.end == 21
        expected = before | {"b": (16, "2"), "z": (17, "1"), "e": (19, "1"), "last": (21, "1")}
        assert contents(await read_on(log)) == expected, "for all readers alike"
        for offset in range(22):
            for limit in (1, 150, 1 << 20):
                seen = contents(await read_committed(log, offset, limit))
                assert seen == {key: at for key, at in expected.items() if at[0] >= offset}
        assert indexed(store, log) == [15, 18], "those behind the part that was cleaned before"
        check_size(log, store)

        # A producer that was aborted before goes on, also when the fold is loaded again.
        async with Host(server.url, "later") as later_host:
            later = later_host.log(log.topic)
            later_host.coordinator = host.coordinator
            await bad.write(later, ("f", "1"))
            await bad.end(later, commit=True)
            await slow.write(later, ("g", "wrong"))
            await slow.end(later, commit=False)
            expected["f"] = (22, "1")
            assert contents(await read_committed(later)) == expected
            await log.current()
            assert contents(await read_committed(log)) == expected
        await write(log, ("last", "2"))
        assert await cleaner.run()
        expected["last"] = (26, "2")
        assert contents(await read_on(log)) == expected
        assert indexed(store, log) == [25]


async def test_a_pass_ends_at_the_edge_of_the_entry_with_the_open_transaction(
    server: RedisServer, store: Any
) -> None:
    """The keys before it count, those of the transaction and behind it do not."""
    async with Host(server.url) as host:
        cleaner = Cleaner(host, await create(host))
        log = cleaner.log
        (producer,) = participants(host, 1)
        await write(log, ("a", "1"), ("b", "1"), ("c", "1"))
        await producer.write(log, ("z", "1"))
        await producer.end(log, commit=True)
        # One entry: its second batch opens a transaction.
        joined = Participation("id-7", adds=False)
        joined.number = 2
        opening = WaitedAppend(records_batch(7, 1, [("b", "2")]), participation=joined)
        first = begin(log, make_batch([(b"a", b"2", NOW)]))
        log.append(opening)
        third = begin(log, make_batch([(b"c", b"2", NOW)]))
        assert [await each.outcome for each in (first, opening, third)] == [5, 6, 7]
        await write(log, ("d", "1"))
        assert log.bounds()[3] == 6
        assert await cleaner.run()
        assert log.reader.clean.end == 5
        offsets = [record.offset for record in await read_on(log)]
        assert offsets == [1, 2, 3, 5, 6, 7, 8]
        check_size(log, store)
        await end(log, 7, 2, commit=True)
        await write(log, ("d", "2"))
        assert await cleaner.run()
        assert [record.offset for record in await read_on(log)] == [3, 5, 6, 7, 10]
        check_size(log, store)


async def test_the_keys_of_the_last_entry_count_up_to_the_last_stable_offset(
    server: RedisServer,
) -> None:
    async with Host(server.url) as host:
        cleaner = Cleaner(host, await create(host))
        log = cleaner.log
        good, bad = participants(host, 2)
        await write(log, ("a", "1"))
        await write(log, ("b", "1"))
        await good.write(log, ("c", "1"))
        await good.end(log, commit=True)
        await bad.write(log, ("a", "wrong"), ("b", "wrong"))
        await bad.end(log, commit=False)
        await good.write(log, ("b", "2"))
        assert await cleaner.run()
        assert [r.offset for r in await read_committed(log)] == [0, 1, 2], "it may be aborted"
        await good.end(log, commit=True)
        assert await cleaner.run()
        assert [r.offset for r in await read_committed(log)] == [0, 2, 7]


async def test_aborted_batches_that_only_the_store_remembers(
    server: RedisServer, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than are in memory, and more than are read at a time."""
    monkeypatch.setattr(transactions, "HELD_IN_MEMORY", 8)
    monkeypatch.setattr(committed, "PAGE", 5)
    monkeypatch.setattr(compaction, "GRACE_S", 0)
    async with Host(server.url, snapshot_entries=20) as host:
        cleaner = Cleaner(host, await create(host))
        log = cleaner.log
        one, other, long = participants(host, 3)
        expected: Contents = {}
        await long.write(log, ("long", "wrong"))
        for number in range(120):
            producer = one if number % 2 else other
            commit = number % 10 == 9
            pairs = ((f"key-{number % 7}", f"{number}"), (f"of-{number}", "1" if commit else None))
            base = await producer.write(log, *pairs)
            await producer.end(log, commit=commit)
            if commit:
                expected |= {key: (base + at, value) for at, (key, value) in enumerate(pairs)}
        await long.end(log, commit=False)
        await write(log, ("last", "1"))
        expected["last"] = (log.end - 1, "1")
        await log.save_snapshot()
        assert log.reader.state.transactions.held_from > 200
        for each in (log, host.log(log.topic)):
            await each.current()
            assert contents(await read_committed(each)) == expected
        assert await cleaner.run()
        assert contents(await read_on(log)) == expected
        assert len(await read_on(log)) == len(expected)
        assert not any(h.attributes & CONTROL for h in await cleaned_batches(host, log))
        await write(log, ("last", "2"))
        assert await cleaner.run()
        assert not indexed(store, log)


async def test_look_ups_by_time_pass_over_what_is_gone(server: RedisServer) -> None:
    """A marker is found as in Kafka, and has the time at which it was written."""
    async with Host(server.url) as host:
        cleaner = Cleaner(host, await create(host))
        log = cleaner.log
        good, bad = participants(host, 2)
        await good.write(log, ("a", "1"), at=1000)
        await bad.write(log, ("b", "1"), at=3000)
        await good.end(log, commit=True)
        await bad.end(log, commit=False)
        await write(log, ("c", "1"), at=4000)
        streams, reader = host.streams, log.reader
        assert await offset_for_timestamp(streams, reader, 2000) == (1, 3000)
        marker = await offset_for_timestamp(streams, reader, NOW)
        assert marker is not None
        assert marker.offset == 2
        newest = await offset_of_largest_timestamp(reader)
        assert newest is not None
        assert newest.offset in (2, 3)
        assert await cleaner.run()
        assert await offset_for_timestamp(streams, reader, 2000) == (4, 4000)
        assert await offset_for_timestamp(streams, reader, NOW) is None
        assert await offset_of_largest_timestamp(reader) == (4, 4000)


async def test_a_snapshot_covers_the_markers_that_go(server: RedisServer, store: Any) -> None:
    """There is no switch without one; with it, a late batch would still be refused."""
    async with Host(server.url) as host:
        cleaner = Cleaner(host, await create(host))
        log = cleaner.log
        (producer,) = participants(host, 1)
        await producer.write(log, ("a", "1"))
        await producer.end(log, commit=False)
        await write(log, ("b", "1"))

        async def save_nothing() -> None: ...

        save = log.save_snapshot
        log.save_snapshot = save_nothing  # type: ignore[method-assign]
        assert not await cleaner.run()
        assert StoredLog(store, log.topic).entries() == 3
        log.save_snapshot = save  # type: ignore[method-assign]
        assert await cleaner.run()
        assert StoredLog(store, log.topic).entries() == 1
        async with Host(server.url, "other") as other_host:
            other = other_host.log(log.topic)
            await other.current()
            known = other.producers()[producer.producer].transactional
            assert known is not None
            assert (known.ended, known.marker_at) == (1, 1)


async def test_a_generation_that_was_lost_before_anything_was_in_it(
    server: RedisServer, store: Any
) -> None:
    """Nothing is left of the log, so nothing was written that could be missed."""
    async with Host(server.url) as host:
        cleaner = Cleaner(host, await create(host))
        log = cleaner.log
        (producer,) = participants(host, 1)
        await producer.write(log, ("a", "1"))
        await producer.end(log, commit=False)
        await write(log, ("b", "1"))
        cover = cleaner.compaction._cover

        async def lose(partition: PartitionLog, end: int) -> None:
            await cover(partition, end)
            store.delete(keys.clean(log.key, 1))

        cleaner.compaction._cover = lose  # type: ignore[method-assign]
        assert not await cleaner.run()
        assert log.reader.clean.generation == 0
