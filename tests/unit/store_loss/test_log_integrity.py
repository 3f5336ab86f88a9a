"""Logs on a store that changes, without a worker: reservations, checks, epochs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from moldau.broker.store import keys
from moldau.broker.store_loss.log_integrity import (
    FIRST_RESERVED,
    FIRST_RESERVED_IF_SLOW,
    LEAST_RESERVED,
)
from tests.support.drivers.log_host import Host, append, begin, stored
from tests.support.stores.lossy import LossyStore, programs
from tests.unit.log.log_batches import plain, sequenced

_names = (f"integrity-{number}" for number in itertools.count())


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LossyStore]:
    with LossyStore(tmp_path, programs()["valkey"]) as made:
        yield made


def fields(store: LossyStore, log: Any) -> dict[bytes, bytes]:
    with store.client() as client:
        found: dict[bytes, bytes] = client.hgetall(keys.state(log.key))
    return found


def reserved(store: LossyStore, log: Any) -> int:
    return int(fields(store, log)[b"r:0"])


async def test_a_new_log_comes_with_a_reservation(store: LossyStore) -> None:
    async with Host(store.url) as host:
        log = await host.create(next(_names))
        assert await append(log, plain(b"x")) == 0
        state = fields(store, log)
        assert state[b"r:0"] == state[b"c:0"]
        assert int(state[b"r:0"]) in (FIRST_RESERVED, FIRST_RESERVED_IF_SLOW)
        assert state[b"history"] == host.integrity.store_id


async def test_other_workers_reserve_for_themselves(store: LossyStore) -> None:
    async with Host(store.url, "a") as leader, Host(store.url, "b", worker=1) as other:
        log = await leader.create(next(_names))
        assert await append(other.log(log.topic), plain(b"x")) == 0
        assert int(fields(store, log)[b"r:1"]) >= 1 + LEAST_RESERVED
        assert fields(store, log)[b"r:1"] == fields(store, log)[b"c:1"]


async def test_a_log_that_nothing_is_reserved_in_stays_as_it_is(store: LossyStore) -> None:
    async with Host(store.url) as host:
        log = await host.create(next(_names))
        await append(log, plain(b"x"))
        await log.release()
    store.kill()
    store.start()
    async with Host(store.url) as host:
        log = host.log(log.topic)
        assert await append(log, plain(b"y")) == 1
        assert log.leader_epoch == 0


async def test_a_restart_begins_an_epoch_above_the_reservation(store: LossyStore) -> None:
    async with Host(store.url) as host:
        log = await host.create(next(_names))
        for _ in range(3):
            await append(log, plain(b"x"))
    ceiling = reserved(store, log)
    store.kill()
    store.start()
    async with Host(store.url) as host:
        log = host.log(log.topic)
        assert await append(log, plain(b"y")) == ceiling
        assert log.epochs.gaps == ((3, ceiling),)
        first, second = (await stored(host, log))[-2:]
        assert (first.base, second.base) == (2, ceiling)
        assert second.blob[12:16] == b"\0\0\0\1", "the batch carries the epoch"


async def test_what_a_living_worker_knew_raises_the_start(store: LossyStore) -> None:
    """An older file is put back: the reservation in it is too low."""
    async with Host(store.url) as host:
        log = await host.create(next(_names))
        await append(log, plain(b"x"))
        with store.client() as client:  # as if much had been appended since, in another file
            client.hset(keys.state(log.key), mapping={"r:0": 2, "c:0": 2})
        log.reader.state.end = 50_000
        store.kill()
        store.start()
        assert await append(log, plain(b"y")) == 50_000
        assert log.epochs.gaps == ((1, 50_000),)


async def test_a_producer_goes_on_behind_its_lost_batches(store: LossyStore) -> None:
    async with Host(store.url) as host:
        log = await host.create(next(_names))
        assert await append(log, sequenced(7, 0)) == 0
        mark, ceiling = store.size(), reserved(store, log)
        assert await append(log, sequenced(7, 1)) == 1
        assert await append(log, sequenced(7, 2)) == 2
        store.kill()
        store.cut_to(mark)
        store.start()
        assert await append(log, sequenced(7, 3)) == ceiling
        assert await append(log, sequenced(7, 0)) == 0, "a duplicate of what is left"
        assert await append(log, sequenced(7, 3)) == ceiling
        assert await append(log, sequenced(7, 4)) == ceiling + 1


async def test_an_append_in_flight_is_appended_once(store: LossyStore) -> None:
    async with Host(store.url) as host:
        log = await host.create(next(_names))
        await append(log, plain(b"x"))
        ceiling = reserved(store, log)
        store.kill()
        waiting = begin(log, plain(b"once"))
        store.start()
        try:
            offset = await waiting.outcome
        except Exception:  # refused while the store was down: sent again
            offset = await append(log, plain(b"once"))
        assert offset == ceiling
        assert [entry.base for entry in await stored(host, log)] == [0, ceiling]


async def test_a_snapshot_under_an_earlier_store_id_is_refused(store: LossyStore) -> None:
    async with Host(store.url) as host:
        log = await host.create(next(_names))
        await append(log, plain(b"x"))
        await host.streams.save_snapshot(log.key, 90, b"later", b"another store")
        assert await host.streams.snapshot_at(log.key) == -1


async def test_index_points_of_lost_offsets_go_with_a_new_epoch(store: LossyStore) -> None:
    async with Host(store.url) as host:
        log = await host.create(next(_names))
        await append(log, plain(b"x"))
        for offset in (1, 2, 50):
            host.streams.index(log.key, 1_000 + offset, offset, 100 * offset)
        await host.control.ask("PING")  # they are there
        store.kill()
        store.start()
        await append(log, plain(b"y"))
        assert log.epochs.current == 1
        assert [point[0] for point in await host.streams.index_points(log.key, 0)] == [1]


# --- another program removes the last entries ---


def remove_all(store: LossyStore, log: Any) -> None:
    with store.client() as client:
        client.xtrim(log.key, maxlen=0, approximate=False)


def remove_each(store: LossyStore, log: Any) -> None:
    with store.client() as client:
        client.xdel(log.key, *(entry_id for entry_id, _ in client.xrange(log.key)))


def remove_last(store: LossyStore, log: Any) -> None:
    with store.client() as client:
        client.xdel(log.key, client.xrevrange(log.key, count=1)[0][0])


REMOVALS = pytest.mark.parametrize("remove", [remove_all, remove_each, remove_last])


@REMOVALS
async def test_entries_are_removed_and_the_store_changes(
    store: LossyStore, remove: Callable[[LossyStore, Any], None]
) -> None:
    async with Host(store.url) as host:
        log = await host.create(next(_names))
        for _ in range(3):
            await append(log, plain(b"x", b"y"))
        ceiling = reserved(store, log)
        remove(store, log)
        kept = len(await stored(host, log)) * 2
        store.kill()
        store.start()
        assert await append(log, plain(b"z")) == ceiling
        assert (log.leader_epoch, log.epochs.gaps) == (1, ((kept, ceiling),))
        assert await append(log, plain(b"z")) == ceiling + 1


@REMOVALS
async def test_entries_are_removed_and_another_worker_loads_the_log(
    store: LossyStore, remove: Callable[[LossyStore, Any], None], caplog: pytest.LogCaptureFixture
) -> None:
    """No offset is used again, though the store id is the same."""
    async with Host(store.url, "a") as host, Host(store.url, "b", worker=1) as other:
        log = await host.create(next(_names))
        for _ in range(3):
            await append(log, plain(b"x", b"y"))
        ceiling = reserved(store, log)
        remove(store, log)
        kept = len(await stored(host, log)) * 2
        theirs = other.log(log.topic)
        assert await append(theirs, plain(b"z")) == ceiling
        assert (theirs.leader_epoch, theirs.epochs.gaps) == (1, ((kept, ceiling),))
        assert f"LOST OFFSETS {kept} TO 4: the store does not have these records" in caplog.text
        # The first one knew the end; now it goes on behind the other.
        assert await append(log, plain(b"z")) == ceiling + 1
        assert log.epochs.gaps == theirs.epochs.gaps
        assert [entry.base async for entry in log.reader.scan(0)][-2:] == [ceiling, ceiling + 1]


async def test_entries_are_removed_while_no_worker_runs(store: LossyStore) -> None:
    """Nothing is reserved any more, and the snapshot knows where the log ended."""
    async with Host(store.url) as host:
        log = await host.create(next(_names))
        for _ in range(3):
            await append(log, plain(b"x", b"y"))
        await log.save_snapshot()
        await log.release()
    remove_all(store, log)
    store.kill()
    store.start()
    async with Host(store.url) as host:
        log = host.log(log.topic)
        assert await append(log, plain(b"z")) == 6
        assert log.leader_epoch == 0


async def test_an_epoch_without_entries_and_another_store_id(store: LossyStore) -> None:
    """The last id is that of XSETID then, of no entry."""
    async with Host(store.url) as host:
        log = await host.create(next(_names))
        await append(log, plain(b"x"))
    starts = [0]
    for number in (1, 2):
        starts.append(reserved(store, log))
        store.kill()
        store.start()
        async with Host(store.url) as host:
            log = host.log(log.topic)
            await log.current()
            assert log.epochs.start == starts[number]
    async with Host(store.url) as host:
        log = host.log(log.topic)
        assert await append(log, plain(b"y")) == starts[2] > starts[1]
        assert (log.leader_epoch, log.epochs.gaps) == (2, ((1, starts[2]),))
