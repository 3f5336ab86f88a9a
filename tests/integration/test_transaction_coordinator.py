"""The shell of transactions on a real store: what is stored before it is said, who may write it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
import redis

from moldau.broker.coordinator.runtime import slots
from moldau.broker.coordinator.transactions import coordinator as transaction_coordinator
from moldau.broker.errors import ErrorCode
from moldau.broker.placement import slot_of
from moldau.broker.store import keys
from moldau.broker.store.replication import NEVER
from moldau.broker.txn.record import TxnPartition, TxnRecord, TxnState, decode
from tests.support.drivers.txn_shell import PLACE, Shell, txn_shell
from tests.support.stores.proxy import StoreProxy
from tests.support.stores.redis_server import RedisServer

NAME = "app: one"
NONE = ErrorCode.NONE
NOT_AVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE
NOT_OURS = ErrorCode.NOT_COORDINATOR


@pytest.fixture(autouse=True)
def raw(server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
        yield client


def stored(client: redis.Redis, name: str = NAME) -> TxnRecord | None:
    found = client.hget(keys.transaction(slot_of(name), name).decode(), "record")
    return None if found is None else decode(found)  # type: ignore[arg-type]


def remember(client: redis.Redis) -> Callable[[], None]:
    """What the store has now; calling the result brings it back, and nothing else."""
    dumps = {key: client.dump(key) for key in client.scan_iter()}

    def restore() -> None:
        client.flushall()
        for key, value in dumps.items():
            assert value is not None
            client.restore(key, 0, value)

    return restore


async def settled(own: Shell, name: str = NAME) -> None:
    """Wait until it owns the id and has nothing to write."""
    async with asyncio.timeout(20):
        while own.coordinator.transactions.availability(name):  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_each_answer_is_stored_before(server: RedisServer, raw: redis.Redis) -> None:
    async with txn_shell(server) as own:
        own.markers.is_held = True
        producer = await own.init(NAME)
        assert (producer.error, producer.producer_epoch) == (NONE, 0)
        record = stored(raw)
        assert record is not None
        assert (record.state, record.producer_id) == (TxnState.EMPTY, producer.producer_id)
        assert (await own.add(NAME, producer)).number == 1
        record = stored(raw)
        assert record is not None
        assert (record.state, record.number, record.partitions) == (TxnState.ONGOING, 1, (PLACE,))
        assert (await own.end(NAME, producer)).error == NONE
        record = stored(raw)
        assert record is not None
        assert record.state is TxnState.PREPARE_COMMIT
        assert [(one.number, one.commit, one.partitions) for one in own.markers.wanted] == [
            (1, True, (PLACE,))
        ]
        own.markers.release()
        assert own.state(NAME) is TxnState.COMPLETE_COMMIT
        async with asyncio.timeout(20):  # after an idle second
            while (record := stored(raw)) and record.state.is_ending:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert record is not None
        assert record.state is TxnState.COMPLETE_COMMIT


async def test_a_restart_goes_on_where_it_was(server: RedisServer, raw: redis.Redis) -> None:
    async with txn_shell(server) as first:
        first.markers.is_held = True
        ending = await first.init("ending")
        await first.add("ending", ending)
        assert (await first.end("ending", ending)).error == NONE
        opened = await first.init("open", timeout_ms=1500)
        await first.add("open", opened)
    async with txn_shell(server) as again:
        assert [(one.transactional_id, one.commit) for one in again.markers.wanted] == [
            ("ending", True)
        ]
        await again.until("ending", TxnState.COMPLETE_COMMIT)
        assert again.state("open") is TxnState.ONGOING
        # Its deadline is the one it had.
        await again.until("open", TxnState.COMPLETE_ABORT)
        assert [one.commit for one in again.markers.wanted] == [True, False]


async def test_7_5_what_is_answered_before_it_is_loaded_and_after(server: RedisServer) -> None:
    async with txn_shell(server, loads=False) as own:
        assert (await own.init(NAME)).error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await own.groups.slots.load()
        producer = await own.init(NAME)
        assert producer.error == NONE
        own.groups.slots.give_up()
        assert (await own.add(NAME, producer)).error == NOT_OURS


async def test_a_worker_that_was_replaced_is_refused_and_gives_up(
    server: RedisServer, raw: redis.Redis
) -> None:
    """It slept, and knows nothing of the other until it writes."""
    async with txn_shell(server) as sleeper:
        sleeper.markers.is_held = True
        producer = await sleeper.init(NAME)
        await sleeper.add(NAME, producer)
        async with txn_shell(server) as heir:
            assert (await heir.end(NAME, producer, commit=False)).error == NONE
            assert (await sleeper.end(NAME, producer)).error == NOT_OURS
            assert sleeper.markers.wanted == []
            record = stored(raw)
            assert record is not None
            assert record.state.is_aborted
        await settled(sleeper)  # by placement it is its own: taken back
        assert sleeper.state(NAME) in (TxnState.PREPARE_ABORT, TxnState.COMPLETE_ABORT)
        assert (await sleeper.end(NAME, producer)).error == ErrorCode.INVALID_TXN_STATE


async def test_markers_of_a_slot_that_was_given_up_are_not_reported(server: RedisServer) -> None:
    async with txn_shell(server) as sleeper:
        sleeper.markers.is_held = True
        producer = await sleeper.init(NAME)
        await sleeper.add(NAME, producer)
        await sleeper.end(NAME, producer)
        sleeper.coordinator.give_up(slot_of(NAME))
        assert sleeper.state(NAME) is None
        sleeper.markers.release()
        assert sleeper.state(NAME) is None


async def test_a_write_waits_until_the_slot_is_taken_again(server: RedisServer) -> None:
    async with StoreProxy(server.port) as proxy, txn_shell(server, proxy.url) as own:
        producer = await own.init(NAME)
        store = own.coordinator._store
        (await proxy.link("moldau-0-groups")).cut()
        async with asyncio.timeout(20):
            for is_up in (False, True):
                while store._pipe.is_up != is_up:  # noqa: ASYNC110
                    await asyncio.sleep(0)
        assert (await own.add(NAME, producer)).error == NONE


async def test_a_write_whose_outcome_is_unknown(server: RedisServer, raw: redis.Redis) -> None:
    """It counts as failed, and no marker goes out; the client asks again."""
    async with StoreProxy(server.port) as proxy, txn_shell(server, proxy.url) as own:
        producer = await own.init(NAME)
        await own.add(NAME, producer)
        link = await proxy.link("moldau-0-groups")
        link.replies.hold()
        ending = asyncio.ensure_future(own.end(NAME, producer))
        async with asyncio.timeout(20):
            while not link.replies.waiting:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        link.cut()
        assert (await ending).error == NOT_AVAILABLE
        record = stored(raw)
        assert record is not None
        assert record.state is TxnState.PREPARE_COMMIT  # it was run after all
        assert own.markers.wanted == []
        async with asyncio.timeout(20):
            while (error := (await own.end(NAME, producer)).error) != NONE:
                assert error == NOT_AVAILABLE
                await asyncio.sleep(0.02)
        assert [one.commit for one in own.markers.wanted] == [True]


async def test_a_full_store(server: RedisServer, raw: redis.Redis) -> None:
    async with txn_shell(server) as own:
        raw.config_set("maxmemory", 1)
        try:
            producer = await own.init(NAME)
            assert (await own.add(NAME, producer)).error == NONE
            assert (await own.end(NAME, producer)).error == NONE
            async with txn_shell(server) as again:
                assert (await again.init(NAME)).producer_epoch == 1
        finally:
            raw.config_set("maxmemory", 0)


async def test_a_decision_waits_for_the_replicas_of_the_store(server: RedisServer) -> None:
    async with txn_shell(server) as own:
        own.replication.replicas = 1
        producer = await own.init(NAME)
        await own.add(NAME, producer)
        assert own.replication.waiting == []  # only decisions do
        ending = asyncio.ensure_future(own.end(NAME, producer))
        async with asyncio.timeout(20):
            while not own.replication.waiting:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        await asyncio.sleep(0.05)
        assert not ending.done()
        assert own.markers.wanted == []
        own.replication.waiting.pop()(1)
        assert (await ending).error == NONE
        await own.until(NAME, TxnState.COMPLETE_COMMIT)


async def test_replicas_that_do_not_get_it(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_coordinator, "REPLICATED_WITHIN_S", 0.05)
    async with txn_shell(server) as own:
        own.replication.replicas = 1
        producer = await own.init(NAME)
        await own.add(NAME, producer)
        assert (await own.end(NAME, producer)).error == NOT_AVAILABLE
        own.replication.waiting.pop()(1)  # too late
        assert own.markers.wanted == []
        ending = asyncio.ensure_future(own.end(NAME, producer))
        async with asyncio.timeout(20):
            while not own.replication.waiting:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        own.replication.waiting.pop()(NEVER)  # the store has changed
        assert (await ending).error == NOT_AVAILABLE
        assert own.markers.wanted == []


# --- a store that lost its tail ---


async def test_what_the_store_lost_is_written_again(
    server: RedisServer, raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    async with txn_shell(server) as own:
        unchanged = await own.init("unchanged")
        committed = await own.init("committed")
        await own.add("committed", committed)
        restore = remember(raw)
        assert (await own.end("committed", committed)).error == NONE
        await own.until("committed", TxnState.COMPLETE_COMMIT)
        opened = await own.init("open")
        await own.add("open", opened)
        own.markers.wanted.clear()
        restore()

        await own.groups.slots.store_changed()

        # The decision is there again, and its markers, which may be lost too.
        await own.until("committed", TxnState.COMPLETE_COMMIT)
        assert [(one.transactional_id, one.number) for one in own.markers.wanted] == [
            ("committed", 1)
        ]
        record = stored(raw, "committed")
        assert record is not None
        assert record.state.is_committed
        record = stored(raw, "open")
        assert record is not None
        assert (record.state, record.partitions) == (TxnState.ONGOING, (PLACE,))
        assert (await own.add("unchanged", unchanged)).error == NONE
        assert (await own.end("open", opened)).error == NONE
    assert "written again" in caplog.text


async def test_a_store_that_was_emptied(server: RedisServer, raw: redis.Redis) -> None:
    async with txn_shell(server) as own:
        producer = await own.init(NAME)
        await own.add(NAME, producer)
        raw.flushall()
        # As soon as a write is refused.
        assert (await own.end(NAME, producer)).error == NONE
        record = stored(raw)
        assert record is not None
        assert record.state.is_committed


async def test_nothing_is_written_before_what_was_lost(
    server: RedisServer, raw: redis.Redis
) -> None:
    """A write that overtook it would hide that markers are missing."""
    async with txn_shell(server) as own:
        producer = await own.init(NAME)
        await own.add(NAME, producer)
        restore = remember(raw)
        assert (await own.end(NAME, producer)).error == NONE
        await own.until(NAME, TxnState.COMPLETE_COMMIT)
        own.markers.wanted.clear()
        restore()
        reacquiring = asyncio.ensure_future(own.groups.slots.store_changed())
        await asyncio.sleep(0)
        assert (await own.add(NAME, producer, TxnPartition("t", b"t" * 16, 1))).error == NONE
        await reacquiring
        async with asyncio.timeout(20):
            while not own.markers.wanted:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert [(one.number, one.commit) for one in own.markers.wanted] == [(1, True)]


async def test_producers_are_fenced_if_no_worker_knows_what_was_lost(
    server: RedisServer, raw: redis.Redis
) -> None:
    """They may have epochs that the store has forgotten, and would give to others."""
    slot = keys.slot(slot_of(NAME)).decode()

    async def noted(store_id: bytes) -> None:
        async with asyncio.timeout(20):
            while raw.hget(slot, "txns") != store_id:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async with txn_shell(server, store_id=b"first") as own:
        await noted(b"first")
        producer = await own.init(NAME)
        await own.add(NAME, producer)
    async with txn_shell(server, store_id=b"first") as again:
        assert (await again.add(NAME, producer)).error == NONE
    async with txn_shell(server, store_id=b"second") as later:
        assert (await later.add(NAME, producer)).error == ErrorCode.PRODUCER_FENCED
        await later.until(NAME, TxnState.COMPLETE_ABORT)
        assert [one.commit for one in later.markers.wanted] == [False]
        await noted(b"second")
        another = await later.init(NAME)
        assert another.error == NONE
        assert another.producer_id != producer.producer_id
    async with txn_shell(server, store_id=b"second") as last:
        assert (await last.add(NAME, another)).error == NONE


# --- the rest ---


async def test_a_record_that_cannot_be_read(
    server: RedisServer, raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be of a newer version: others are served, and it is not overwritten."""
    name = next(f"app-{number}" for number in range(999) if slot_of(f"app-{number}") == 3)
    other = next(f"b-{number}" for number in range(999) if slot_of(f"b-{number}") == 3)
    async with txn_shell(server) as own:
        for each in (name, other):
            producer = await own.init(each)
    key = keys.transaction(3, name).decode()
    raw.hset(key, mapping={"record": b"\xc1", "revision": "9"})
    async with txn_shell(server) as again:
        assert (await again.add(other, producer)).error == NONE
        assert (await again.init(name)).error == NOT_AVAILABLE
    assert raw.hget(key, "record") == b"\xc1"
    assert f"transactional id {name} cannot be served" in caplog.text


async def test_ids_that_were_not_used_for_long_go(
    server: RedisServer, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with txn_shell(server) as own:
        await own.init(NAME)
        opened = await own.init("open")
        await own.add("open", opened)
        own.coordinator.expire()
        assert stored(raw) is not None
        now = own.coordinator.now_ms()
        monkeypatch.setattr(own.coordinator, "now_ms", lambda: now + 8 * 86_400_000)
        own.coordinator.expire()
        async with asyncio.timeout(20):
            while own.state(NAME) is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        assert stored(raw) is None
        assert raw.smembers(keys.transactions(slot_of(NAME)).decode()) == set()
        assert stored(raw, "open") is not None


async def test_two_that_both_think_a_slot_theirs(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take it from each other; no transaction that was committed is aborted as well."""
    monkeypatch.setattr(slots, "TAKE_BACK_S", 0.02)
    decided: dict[int, bool] = {}
    async with txn_shell(server) as one, txn_shell(server) as other:
        for number in range(40):
            own = one if number % 3 else other
            producer = await own.init(NAME)
            if producer.error or (await own.add(NAME, producer)).error:
                await asyncio.sleep(0.01)
                continue
            await own.end(NAME, producer, commit=bool(number % 2))
        for wanted in one.markers.wanted + other.markers.wanted:
            assert decided.setdefault(wanted.number, wanted.commit) == wanted.commit
    assert len(decided) > 5
