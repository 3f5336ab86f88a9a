"""Share-partitions that a worker leads, on a real store: 9.7, 9.9, 9.13, 9.19 to 9.22."""

from __future__ import annotations

import asyncio

import pytest

from moldau.broker.coordinator.shares import partitions
from moldau.broker.coordinator.shares.partitions import ShareKey
from moldau.broker.errors import ErrorCode, KafkaError, StoreFault, StoreFull
from moldau.broker.placement import slot_of
from moldau.broker.share.effects import Archived
from moldau.broker.share.limits import ShareLimits
from moldau.broker.store import keys
from tests.support.stores.proxy import StoreProxy
from tests.support.stores.redis_server import RedisServer
from tests.unit.coordinator.share_worker import (
    END,
    EPOCH,
    PLACE,
    REJECT,
    until,
    working,
)


async def test_9_7_the_start_is_resolved_once_and_stored_before_anything_is_delivered(
    server: RedisServer,
) -> None:
    async with working(server) as one, working(server) as two:
        key = one.group()
        one.start, two.start = 42, 77
        first, again = await asyncio.gather(one.shares.take(key), one.shares.take(key))
        assert first is again is one.shares.ready(key)
        assert one.started == 1
        assert one.acquire(first) == [(42, 51, 1)]
        led = await two.shares.take(key)
        assert two.started == 0
        assert two.acquire(led) == [(42, 51, 1)]


async def test_9_19_the_next_leader_has_what_was_confirmed(server: RedisServer) -> None:
    async with working(server) as one, working(server) as two:
        key = one.group()
        led = await one.shares.take(key)
        assert one.acquire(led) == [(0, 9, 1)]
        assert await one.acknowledge(led, 0, 4) is ErrorCode.NONE
        assert await one.acknowledge(led, 7, 7, REJECT) is ErrorCode.NONE
        assert one.effects == [Archived(7, 7, 1, is_limit=False)]
        new = await two.shares.take(key)
        assert two.acquire(new) == [(5, 6, 1), (8, 15, 1)]
        # The leader before does not know yet, and stores nothing any more.
        assert await one.acknowledge(led, 5, 6) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert one.shares.ready(key) is None
        assert await one.acknowledge(led, 5, 6) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        with pytest.raises(KafkaError) as refusal:
            await one.shares.take(key)  # not at once: they would take it from each other
        assert refusal.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await two.acknowledge(new, 5, 6) is ErrorCode.NONE


async def test_one_that_was_fenced_takes_it_again_after_a_while(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "TAKE_BACK_S", 0.0)
    async with working(server) as one, working(server) as two:
        key = one.group()
        led = await one.shares.take(key)
        one.acquire(led)
        await two.shares.take(key)
        assert await one.acknowledge(led, 0, 9) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert one.acquire(await one.shares.take(key)) == [(0, 9, 1)]


async def test_acknowledgements_of_one_turn_are_one_write(server: RedisServer) -> None:
    async with working(server) as one:
        key = one.group()
        led = await one.shares.take(key)
        one.acquire(led, most=END)
        writes = one.client.info("commandstats")["cmdstat_set"]["calls"]
        waiting = [one.acknowledging(led, offset, offset) for offset in range(END)]
        assert not any(each.done() for each in waiting)
        assert set(await asyncio.gather(*waiting)) == {ErrorCode.NONE}
        after = one.client.info("commandstats")["cmdstat_set"]["calls"]
        assert after == writes + 1
        assert led.machine.start == END


async def test_there_is_no_share_group(server: RedisServer) -> None:
    async with working(server) as one:
        for key in (ShareKey("nobody", PLACE), one.group()):
            name = keys.group(slot_of(key.group_id), key.group_id)
            one.client.hdel(name, "type")
            with pytest.raises(KafkaError) as refusal:
                await one.shares.take(key)
            assert refusal.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert len(one.shares) == 0


async def test_a_group_of_the_same_name_has_nothing_of_the_one_before(
    server: RedisServer,
) -> None:
    async with working(server) as one:
        key = one.group()
        led = await one.shares.take(key)
        one.acquire(led)
        assert await one.acknowledge(led, 0, 9) is ErrorCode.NONE
        one.shares.drop_group(key.group_id, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        name = keys.group(slot_of(key.group_id), key.group_id)
        one.client.hset(name, "identity", "two")
        assert one.acquire(await one.shares.take(key)) == [(0, 9, 1)]


async def test_9_20_a_store_that_refuses_leaves_the_records_locked(server: RedisServer) -> None:
    async with working(server) as one:
        key = one.group()
        led = await one.shares.take(key)
        one.acquire(led)
        another = one.group()
        one.client.config_set("maxmemory", 1)
        try:
            assert await one.acknowledge(led, 0, 4) is ErrorCode.KAFKA_STORAGE_ERROR
            assert one.acquire(led, "other", most=1) == [(10, 10, 1)]
            with pytest.raises(StoreFull):
                await one.shares.take(another)
        finally:
            one.client.config_set("maxmemory", 0)
        assert await one.acknowledge(led, 0, 4) is ErrorCode.NONE
        assert led.machine.start == 5


@pytest.mark.parametrize("is_written", [False, True])
async def test_9_20_a_lost_connection_costs_no_memory(
    server: RedisServer, is_written: bool
) -> None:
    async with StoreProxy(server.port) as proxy, working(server, proxy.url, "w") as one:
        key = one.group()
        led = await one.shares.take(key)
        one.acquire(led)
        link = await proxy.link("w")
        (link.replies if is_written else link.requests).hold()
        lost = one.acknowledging(led, 0, 4)
        await asyncio.sleep(0.05)
        link.cut_client()
        assert await lost is ErrorCode.KAFKA_STORAGE_ERROR
        await proxy.link("w", other_than=link)
        await one.store._pipe.wait_up()
        assert one.shares.ready(key) is None
        # What comes before the next fetch makes the worker take it again.
        assert await one.acknowledge(led, 5, 9) is ErrorCode.NONE
        assert await one.shares.take(key) is led
        link.requests.release()
        await asyncio.sleep(0.05)
        assert await one.acknowledge(led, 0, 4) is ErrorCode.NONE
        assert led.machine.start == 10
        one.shares.drop_group(key.group_id, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert one.acquire(await one.shares.take(key)) == [(10, 19, 1)]


async def test_9_20_while_the_store_is_away(server: RedisServer) -> None:
    async with StoreProxy(server.port) as proxy, working(server, proxy.url, "w") as one:
        key = one.group()
        led = await one.shares.take(key)
        one.acquire(led)
        proxy.refusing = True
        (await proxy.link("w")).cut()
        await until(lambda: not one.store.is_up)
        assert await one.acknowledge(led, 0, 4) is ErrorCode.KAFKA_STORAGE_ERROR
        with pytest.raises(StoreFault):
            await one.shares.take(key)
        proxy.refusing = False
        await one.store._pipe.wait_up()
        assert await one.shares.take(key) is led
        assert await one.acknowledge(led, 0, 9) is ErrorCode.NONE


async def test_a_leader_that_lives_writes_what_the_store_lost(server: RedisServer) -> None:
    async with StoreProxy(server.port) as proxy, working(server, proxy.url, "w") as one:
        key = one.group()
        led = await one.shares.take(key)
        one.acquire(led)
        before = await one.stored(key)
        assert await one.acknowledge(led, 0, 4) is ErrorCode.NONE
        link = await proxy.link("w")
        link.cut()
        slot = slot_of(key.group_id)
        name = keys.share(slot, key.group_id, *PLACE, led.term.number)
        one.client.set(name, before)
        await proxy.link("w", other_than=link)
        await one.store._pipe.wait_up()
        assert await one.shares.take(key) is led
        one.shares.drop_group(key.group_id, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert one.acquire(await one.shares.take(key)) == [(5, 14, 1)]


async def test_9_13_locks_end_by_the_clock(server: RedisServer) -> None:
    async with working(server) as one:
        one.limits = ShareLimits(lock_ms=30, delivery_count=2)
        led = await one.shares.take(one.group())
        assert one.acquire(led, most=2) == [(0, 1, 1)]
        await until(lambda: led.machine.wanted(one.limits) == 0)
        assert one.woken
        assert await one.acknowledge(led, 0, 1) is ErrorCode.INVALID_RECORD_STATE
        assert one.acquire(led, most=2) == [(0, 1, 2)]
        # At the limit: archived, stored without anybody asking.
        await until(lambda: led.machine.start == 2)
        assert Archived(0, 1, 2, is_limit=True) in one.effects
        assert led.machine.view(one.shares.now_ms, 10).in_flight == 0


async def test_9_28_locks_wait_for_a_worker_that_was_held_up(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "LATE_MS", -1)  # every timer is late
    async with working(server) as one:
        one.limits = ShareLimits(lock_ms=20)
        led = await one.shares.take(one.group())
        one.acquire(led)
        before = led.machine.next_deadline()
        assert before is not None
        await until(lambda: (led.machine.next_deadline() or 0) > before)
        assert (led.machine.next_deadline() or 0) >= before + partitions.GRACE_MS
        assert await one.acknowledge(led, 0, 9) is ErrorCode.NONE


async def test_released_locks_are_stored_within_a_second(server: RedisServer) -> None:
    async with working(server) as one:
        key = one.group()
        led = await one.shares.take(key)
        one.acquire(led)
        before = await one.stored(key)
        one.shares.leave(key.group_id, "m")
        assert one.acquire(led, "n", most=3) == [(0, 2, 2)]
        assert await one.stored(key) == before
        async with asyncio.timeout(60):
            while await one.stored(key) == before:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert led.machine.save_at() is None


async def test_9_21_an_administrator_is_heard(server: RedisServer) -> None:
    async with working(server) as one:
        key = one.group()
        led = await one.shares.take(key)
        one.acquire(led)
        slot = slot_of(key.group_id)
        state = await one.stored(key)
        await one.store.replace(slot, EPOCH, key.group_id, b"one", {PLACE: state})
        lost = one.acknowledging(led, 0, 4)
        one.shares.drop_group(key.group_id, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert await lost is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert one.acquire(await one.shares.take(key)) == [(0, 9, 1)]


async def test_9_22_a_topic_that_is_gone(server: RedisServer) -> None:
    async with working(server) as one:
        key = one.group()
        led = await one.shares.take(key)
        one.acquire(led)
        lost = one.acknowledging(led, 0, 4)
        one.shares.drop_topic(PLACE.topic_id)
        assert await lost is ErrorCode.UNKNOWN_TOPIC_ID
        assert len(one.shares) == 0


async def test_what_nobody_reads_is_dropped_after_its_last_write(server: RedisServer) -> None:
    async with working(server) as one:
        key = one.group()
        led = await one.shares.take(key)
        one.acquire(led)
        waiting = one.acknowledging(led, 0, 4)
        one.shares.let_go(key.group_id)
        assert len(one.shares) == 1
        assert await waiting is ErrorCode.NONE
        await until(lambda: len(one.shares) == 0)
        led = await one.shares.take(key)
        one.shares.let_go(key.group_id)
        assert led.is_dropped


async def test_a_machine_that_fails_is_dropped_and_taken_anew(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with working(server) as one:
        key = one.group()
        led = await one.shares.take(key)
        one.acquire(led)
        waiting = one.acknowledging(led, 0, 4)

        def fail(*_: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(led.machine, "leave", fail)
        one.shares.leave(key.group_id, "m")
        assert await waiting is ErrorCode.KAFKA_STORAGE_ERROR
        assert led.is_dropped
        assert "a share-partition of group" in caplog.text
        assert one.acquire(await one.shares.take(key))[0][2] == 1


async def test_a_state_that_cannot_be_read_is_left_as_it_is(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with working(server) as one:
        key = one.group()
        led = await one.shares.take(key)
        name = keys.share(slot_of(key.group_id), key.group_id, *PLACE, led.term.number)
        one.shares.drop(led, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        one.client.set(name, b"\7damaged")
        with pytest.raises(KafkaError) as refusal:
            await one.shares.take(key)
        assert refusal.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert await one.stored(key) == b"\7damaged"
        assert "reset the group's offsets" in caplog.text
