"""A partition's log against a real store: compare-and-append, also when the store says no.

A proxy stands in for the network where a test needs bytes to be late. Whole workers and random
faults are tests/chaos' affair; here every interleaving is chosen.
"""

import asyncio
from itertools import count

import pytest
import redis as redis_py

from moldau.broker.errors import ErrorCode, KafkaError, StoreFull, StoreRefused
from moldau.broker.log.writing.phases import Phase
from tests.support.drivers.log_host import Host, append, begin, stored, until
from tests.support.raw.client import make_batch
from tests.support.stores.proxy import StoreProxy
from tests.support.stores.redis_server import RedisServer
from tests.unit.log.log_batches import fold, plain, sequenced, values

_names = (f"log-{number}" for number in count())


# --- appending ---


async def test_appends_are_dense_across_writers(server: RedisServer) -> None:
    async with Host(server.url, "a") as one, Host(server.url, "b") as two:
        first = await one.create(next(_names))
        second = two.log(first.topic)
        assert await append(first, plain(b"0", b"1")) == 0
        assert await append(second, plain(b"2")) == 2
        assert await append(first, plain(b"3", b"4")) == 3  # its end was stale
        assert await append(second, plain(b"5")) == 5
        assert await values(one, first) == [b"%d" % number for number in range(6)]
        assert first.end == 5  # what the other appended since, it has not heard of
        await first.current()
        assert first.end == second.end == 6


async def test_what_waits_is_gathered_into_one_entry(server: RedisServer) -> None:
    async with Host(server.url) as host:
        log = await host.create(next(_names))
        waiting = [begin(log, plain(b"%d" % number)) for number in range(50)]
        assert [await one.outcome for one in waiting] == list(range(50))
        assert len(await stored(host, log)) <= 2
        assert await values(host, log) == [b"%d" % number for number in range(50)]


async def test_the_state_kept_while_appending_is_the_fold_of_the_log(server: RedisServer) -> None:
    """Batches gathered into one entry too, whose largest timestamp stands in the middle."""

    async with Host(server.url) as host:
        log = await host.create(next(_names))
        times = [5, 9, 7, 9, 12, 3]
        batches = [
            make_batch([(None, b"x", time)], producer_id=7, producer_epoch=0, base_sequence=number)
            for number, time in enumerate(times)
        ]
        for batch in batches[:2]:
            await append(log, batch)
        for one in [begin(log, batch) for batch in batches[2:]]:
            await one.outcome
        assert log.reader.state.snapshot() == (await fold(host, log)).snapshot()
        assert log.reader.state.max_timestamp_base == 4


async def test_a_log_that_is_not_there_is_not_created(server: RedisServer) -> None:
    async with Host(server.url) as host:
        log = host.log(next(_names))
        with pytest.raises(KafkaError) as refusal:
            await append(log, plain(b"x"))
        assert refusal.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await stored(host, log) == []
        assert log.writer.phase is Phase.GONE


async def test_a_given_up_append_is_not_sent(server: RedisServer) -> None:
    async with Host(server.url) as host:
        log = await host.create(next(_names))
        first, second, third = (begin(log, plain(value)) for value in (b"a", b"b", b"c"))
        second.given_up = True
        assert await first.outcome == 0
        assert await third.outcome == 1
        assert await values(host, log) == [b"a", b"c"]
        assert not second.outcome.done()


# --- idempotence, across writers ---


async def test_4_1_retry_through_another_writer_is_recognised(server: RedisServer) -> None:
    async with Host(server.url, "a") as one, Host(server.url, "b") as two:
        first = await one.create(next(_names))
        second = two.log(first.topic)
        await append(second, plain(b"x"))
        assert await append(first, sequenced(5, 0, 3)) == 1
        assert await append(second, sequenced(5, 0, 3)) == 1
        assert await append(second, sequenced(5, 3)) == 4
        assert await append(first, sequenced(5, 3)) == 4
        assert len(await values(one, first)) == 5


async def test_4_1_a_writer_with_a_stale_view_does_not_refuse_the_next_sequence(
    server: RedisServer,
) -> None:
    """OUT_OF_ORDER is final for many clients: it is only said after looking at the log."""

    async with Host(server.url, "a") as one, Host(server.url, "b") as two:
        first = await one.create(next(_names))
        second = two.log(first.topic)
        assert await append(first, sequenced(5, 0)) == 0
        assert await append(second, sequenced(5, 1)) == 1
        for number in range(2, 40, 2):  # each time the other one is two batches behind
            assert await append(first, sequenced(5, number)) == number
            assert await append(first, sequenced(5, number + 1)) == number + 1
            first, second = second, first
        with pytest.raises(KafkaError) as refusal:
            await append(second, sequenced(5, 99))
        assert refusal.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


async def test_4_1_out_of_order_in_a_crowd_keeps_the_others_in_order(server: RedisServer) -> None:
    async with Host(server.url, "a") as one, Host(server.url, "b") as two:
        log = await one.create(next(_names))
        other = two.log(log.topic)
        await append(log, sequenced(5, 0))
        await append(other, sequenced(5, 1))
        crowd = [
            begin(log, batch)
            for batch in (
                plain(b"a"),
                sequenced(5, 2),
                plain(b"b"),
                sequenced(5, 9),
                plain(b"c"),
            )
        ]
        outcomes = await asyncio.gather(*(one.outcome for one in crowd), return_exceptions=True)
        assert [outcome for outcome in outcomes if isinstance(outcome, int)] == [2, 3, 4, 5]
        assert isinstance(outcomes[3], KafkaError)
        assert await values(one, log) == [b"5-0", b"5-1", b"a", b"5-2", b"b", b"c"]


async def test_4_1_a_duplicate_is_not_acknowledged_before_its_original_is_in_the_log(
    server: RedisServer,
) -> None:
    """Both wait at once when a client reconnects and sends again while the store is slow."""

    async with StoreProxy(server.port) as proxy, Host(proxy.url, "a") as one:
        log = await one.create(next(_names))
        await append(log, plain(b"x"))
        link = await proxy.link("a-bulk")
        link.replies.hold()
        begin(log, plain(b"y"))  # keeps the others waiting
        await until(lambda: log.writer.phase is Phase.APPENDING)
        original, retry = begin(log, sequenced(5, 0)), begin(log, sequenced(5, 0))
        await until(lambda: link.replies.waiting > 0)
        with redis_py.from_url(server.url) as client:
            # The entry that would carry both is going to be refused.
            client.config_set("maxmemory", "1")
            link.replies.release()
            try:
                outcomes = await asyncio.gather(
                    original.outcome, retry.outcome, return_exceptions=True
                )
            finally:
                client.config_set("maxmemory", "0")
        assert [type(outcome) for outcome in outcomes] == [StoreFull, StoreFull]
        assert await values(one, log) == [b"x", b"y"]
        again = [begin(log, sequenced(5, 0)) for _ in range(3)]
        assert [await one.outcome for one in again] == [2, 2, 2]
        assert await values(one, log) == [b"x", b"y", b"5-0"]


# --- a store that says no ---


async def test_6_7_store_full_is_said_and_passes(server: RedisServer) -> None:
    async with Host(server.url) as host:
        log = await host.create(next(_names))
        await append(log, plain(b"x"))
        with redis_py.from_url(server.url) as client:
            client.config_set("maxmemory", "1")
            try:
                with pytest.raises(StoreFull):
                    await append(log, plain(b"y"))
                assert host.full
                assert await values(host, log) == [b"x"]
            finally:
                client.config_set("maxmemory", "0")
        assert await append(log, plain(b"z")) == 1


async def test_without_a_connection_appends_fail_at_once(server: RedisServer) -> None:
    async with StoreProxy(server.port) as proxy, Host(proxy.url, "a") as host:
        log = await host.create(next(_names))
        await append(log, plain(b"x"))
        proxy.refusing = True
        (await proxy.link("a-bulk")).cut()
        await until(lambda: not host.bulk.is_up)
        with pytest.raises(StoreRefused):
            await append(log, plain(b"y"))
        proxy.refusing = False
        await host.bulk.wait_up()
        assert await append(log, plain(b"z")) == 1
