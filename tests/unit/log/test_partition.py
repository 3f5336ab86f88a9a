"""A partition's log against a real store: compare-and-append, and what it does when things break.

A proxy stands in for the network where a test needs bytes to be late or lost. Whole workers and
random faults are tests/chaos' affair; here every interleaving is chosen.
"""

import asyncio
from itertools import count
from typing import Any

import pytest
import redis as redis_py
import uvloop

from broker.errors import ErrorCode, KafkaError, StoreFault, StoreFull, StoreRefused
from broker.log.following import MOST_BYTES, Phase
from broker.log.state import LogState
from broker.wire.batch import headers, read_header
from broker.wire.records import read_records
from tests.support.log_host import Host, WaitedAppend, append, begin, stored, until
from tests.support.raw_client import make_batch
from tests.support.redis_server import RedisServer
from tests.support.store_proxy import StoreProxy

_names = (f"log-{number}" for number in count())


def plain(*values: bytes) -> bytearray:
    return make_batch([(None, value, 1_000) for value in values])


def sequenced(producer: int, sequence: int, records: int = 1, epoch: int = 0) -> bytearray:
    values = [b"%d-%d" % (producer, sequence + number) for number in range(records)]
    return make_batch(
        [(None, value, 1_000) for value in values],
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


async def values(host: Host, log: Any) -> list[bytes | None]:
    """What consumers would see, and that offsets are dense."""
    found = []
    expected = 0
    for entry in await stored(host, log):
        assert entry.base == expected
        at = 0
        for header in headers(entry.blob):
            assert header.base_offset == expected
            expected = header.next_offset
            batch = entry.blob[at : at + header.size]
            found += [record.value for record in read_records(batch, 1 << 20)]
            at += header.size
    assert len(found) == expected
    return found


async def fold(host: Host, log: Any) -> LogState:
    state = LogState()
    for entry in await stored(host, log):
        state.apply(headers(entry.blob), len(entry.blob))
    return state


# --- appending ---


def test_appends_are_dense_whoever_makes_them(server: RedisServer) -> None:
    async def run() -> None:
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

    uvloop.run(run())


def test_what_waits_is_gathered_into_one_entry(server: RedisServer) -> None:
    async def run() -> None:
        async with Host(server.url) as host:
            log = await host.create(next(_names))
            waiting = [begin(log, plain(b"%d" % number)) for number in range(50)]
            assert [await one.outcome for one in waiting] == list(range(50))
            assert len(await stored(host, log)) <= 2
            assert await values(host, log) == [b"%d" % number for number in range(50)]

    uvloop.run(run())


def test_the_state_kept_while_appending_is_the_fold_of_the_log(server: RedisServer) -> None:
    """Batches gathered into one entry too, whose largest timestamp stands in the middle."""

    async def run() -> None:
        async with Host(server.url) as host:
            log = await host.create(next(_names))
            times = [5, 9, 7, 9, 12, 3]
            batches = [
                make_batch(
                    [(None, b"x", time)], producer_id=7, producer_epoch=0, base_sequence=number
                )
                for number, time in enumerate(times)
            ]
            for batch in batches[:2]:
                await append(log, batch)
            for one in [begin(log, batch) for batch in batches[2:]]:
                await one.outcome
            assert log.state.snapshot() == (await fold(host, log)).snapshot()
            assert log.state.max_timestamp_base == 4

    uvloop.run(run())


def test_a_log_that_is_not_there_is_not_created(server: RedisServer) -> None:
    async def run() -> None:
        async with Host(server.url) as host:
            log = host.log(next(_names))
            with pytest.raises(KafkaError) as refusal:
                await append(log, plain(b"x"))
            assert refusal.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert await stored(host, log) == []
            assert log.phase is Phase.GONE

    uvloop.run(run())


def test_a_given_up_append_is_not_sent(server: RedisServer) -> None:
    async def run() -> None:
        async with Host(server.url) as host:
            log = await host.create(next(_names))
            first, second, third = (begin(log, plain(value)) for value in (b"a", b"b", b"c"))
            second.given_up = True
            assert await first.outcome == 0
            assert await third.outcome == 1
            assert await values(host, log) == [b"a", b"c"]
            assert not second.outcome.done()

    uvloop.run(run())


# --- idempotence, across writers ---


def test_4_1_retry_through_another_writer_is_recognised(server: RedisServer) -> None:
    async def run() -> None:
        async with Host(server.url, "a") as one, Host(server.url, "b") as two:
            first = await one.create(next(_names))
            second = two.log(first.topic)
            await append(second, plain(b"x"))
            assert await append(first, sequenced(5, 0, 3)) == 1
            assert await append(second, sequenced(5, 0, 3)) == 1
            assert await append(second, sequenced(5, 3)) == 4
            assert await append(first, sequenced(5, 3)) == 4
            assert len(await values(one, first)) == 5

    uvloop.run(run())


def test_4_1_a_writer_with_a_stale_view_does_not_refuse_the_next_sequence(
    server: RedisServer,
) -> None:
    """OUT_OF_ORDER is final for many clients: it is only said after looking at the log."""

    async def run() -> None:
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

    uvloop.run(run())


def test_4_1_out_of_order_in_a_crowd_keeps_the_others_in_order(server: RedisServer) -> None:
    async def run() -> None:
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

    uvloop.run(run())


def test_4_1_a_duplicate_is_not_acknowledged_before_its_original_is_in_the_log(
    server: RedisServer,
) -> None:
    """Both wait at once when a client reconnects and sends again while the store is slow."""

    async def run() -> None:
        async with StoreProxy(server.port) as proxy, Host(proxy.url, "a") as one:
            log = await one.create(next(_names))
            await append(log, plain(b"x"))
            link = await proxy.link("a-bulk")
            link.replies.hold()
            begin(log, plain(b"y"))  # keeps the others waiting
            await until(lambda: log.phase is Phase.APPENDING)
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

    uvloop.run(run())


# --- a lost connection with an append out ---


def test_reply_lost_the_entry_is_found(server: RedisServer) -> None:
    async def run() -> None:
        async with StoreProxy(server.port) as proxy, Host(proxy.url, "a") as host:
            log = await host.create(next(_names))
            await append(log, plain(b"x"))
            for number in range(10):
                link = await proxy.link("a-bulk")
                link.replies.hold()
                out = begin(log, plain(b"%d" % number))
                await until(lambda link=link: link.replies.waiting > 0)  # type: ignore[misc]
                link.cut()
                assert await out.outcome == 1 + number
                assert out.answers == 1
            assert len(await values(host, log)) == 11

    uvloop.run(run())


def test_request_lost_it_is_sent_again(server: RedisServer) -> None:
    async def run() -> None:
        async with StoreProxy(server.port) as proxy, Host(proxy.url, "a") as host:
            log = await host.create(next(_names))
            await append(log, plain(b"x"))
            for cut_at in (0, 1, 40, 100):
                link = await proxy.link("a-bulk")
                link.requests.stop_after(cut_at, link.cut)
                out = begin(log, plain(b"%d" % cut_at))
                await out.outcome
            assert await values(host, log) == [b"x", b"0", b"1", b"40", b"100"]

    uvloop.run(run())


def test_an_append_that_arrives_after_it_was_missed_is_not_appended_twice(
    server: RedisServer,
) -> None:
    """Lost, not found in the log, sent again; then the first one arrives, before the second."""

    async def run() -> None:
        async with StoreProxy(server.port) as proxy, Host(proxy.url, "a") as host:
            log = await host.create(next(_names))
            await append(log, plain(b"x"))
            lost = await proxy.link("a-bulk")
            lost.requests.hold()
            out = begin(log, plain(b"once"))
            await until(lambda: lost.requests.waiting > 0)
            # What follows the next connection's greeting waits.
            loop = asyncio.get_running_loop()
            proxy.on_link = lambda link: void(loop.call_soon(link.requests.hold))
            lost.cut_client()
            second = await proxy.link("a-bulk", other_than=lost)
            await until(lambda: second.requests.waiting > 100)  # it was missed and sent again
            lost.requests.release()
            await until(lambda: lost.requests.waiting == 0)
            async with Host(server.url, "b") as other:
                await until_stored(other, log, 2)
            second.requests.release()
            assert await out.outcome == 1
            assert out.answers == 1
            assert await append(log, plain(b"next")) == 2
            assert await values(host, log) == [b"x", b"once", b"next"]

    uvloop.run(run())


def void(_: object) -> None:
    """For lambdas whose value nobody wants."""


async def until_stored(host: Host, log: Any, entries: int) -> None:
    async with asyncio.timeout(30):
        while len(await stored(host, log)) < entries:  # noqa: ASYNC110
            await asyncio.sleep(0.002)


def test_late_arrival_behind_somebody_elses_append(server: RedisServer) -> None:
    async def run() -> None:
        async with (
            StoreProxy(server.port) as proxy,
            Host(proxy.url, "a") as host,
            Host(server.url, "b") as other,
        ):
            log = await host.create(next(_names))
            theirs = other.log(log.topic)
            await append(log, plain(b"x"))
            lost = await proxy.link("a-bulk")
            lost.requests.hold()
            out = begin(log, plain(b"mine"))
            await until(lambda: lost.requests.waiting > 0)
            assert await append(theirs, plain(b"theirs")) == 1
            lost.cut_client()
            assert await out.outcome == 2
            lost.requests.release()  # too late: the store refuses it
            assert await append(log, plain(b"end")) == 3
            assert await values(host, log) == [b"x", b"theirs", b"mine", b"end"]

    uvloop.run(run())


def test_identical_batches_of_two_writers_are_told_apart(server: RedisServer) -> None:
    """The other's entry at our place holds the very bytes we sent: the nonce differs."""

    async def run() -> None:
        async with (
            StoreProxy(server.port) as proxy,
            Host(proxy.url, "a") as host,
            Host(server.url, "b") as other,
        ):
            log = await host.create(next(_names))
            theirs = other.log(log.topic)
            await append(log, plain(b"x"))
            await theirs.current()
            lost = await proxy.link("a-bulk")
            lost.requests.hold()
            out = begin(log, plain(b"same"))
            await until(lambda: lost.requests.waiting > 0)
            assert await append(theirs, plain(b"same")) == 1
            lost.cut()
            assert await out.outcome == 2
            assert await values(host, log) == [b"x", b"same", b"same"]

    uvloop.run(run())


def test_a_store_that_stops_answering_counts_as_lost(server: RedisServer) -> None:
    async def run() -> None:
        async with StoreProxy(server.port) as proxy, Host(proxy.url, "a", stall_after=0.2) as host:
            log = await host.create(next(_names))
            await append(log, plain(b"x"))
            link = await proxy.link("a-bulk")
            link.replies.hold()  # half open: nothing ever comes back
            assert await append(log, plain(b"y")) == 1
            assert await values(host, log) == [b"x", b"y"]

    uvloop.run(run())


def test_what_waits_behind_an_unknown_outcome_can_be_given_up(server: RedisServer) -> None:
    """While the store is away clients send again and again: what they gave up is let go."""

    async def run() -> None:
        async with StoreProxy(server.port) as proxy, Host(proxy.url, "a") as host:
            log = await host.create(next(_names))
            await append(log, plain(b"x"))
            proxy.refusing = True
            link = await proxy.link("a-bulk")
            link.requests.hold()
            out = begin(log, plain(b"first"))
            await until(lambda: link.requests.waiting > 0)
            link.cut()
            await until(lambda: log.phase is Phase.RESOLVING)
            for _ in range(20):
                waiting = [begin(log, plain(b"again")) for _ in range(10)]
                for one in waiting:
                    one.given_up = True
                assert len(log._queue) == len(waiting)
            proxy.refusing = False
            assert await out.outcome == 1
            assert await values(host, log) == [b"x", b"first"]

    uvloop.run(run())


# --- a store that says no ---


def test_6_7_store_full_is_said_and_passes(server: RedisServer) -> None:
    async def run() -> None:
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

    uvloop.run(run())


def test_without_a_connection_appends_fail_at_once(server: RedisServer) -> None:
    async def run() -> None:
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

    uvloop.run(run())


# --- knowing what others appended ---


def test_current_does_not_wait_for_the_queue_to_run_dry(server: RedisServer) -> None:
    async def run() -> None:
        async with Host(server.url) as host:
            log = await host.create(next(_names))
            appended = 0
            stop = False

            class Endless(WaitedAppend):
                """Answered, it brings the next one: the queue is never empty."""

                __slots__ = ()

                def done(self, error: BaseException | None, base: int, time: int) -> None:
                    nonlocal appended
                    appended += 1
                    if not stop:
                        log.append(Endless(plain(b"x")))

            for _ in range(4):
                log.append(Endless(plain(b"x")))
            for _ in range(20):
                async with asyncio.timeout(20):
                    await log.current()
            stop = True
            await until(lambda: not log.is_busy)
            assert appended == log.end

    uvloop.run(run())


def test_a_reader_far_behind_catches_up(server: RedisServer) -> None:
    async def run() -> None:
        async with Host(server.url, "a") as one, Host(server.url, "b") as two:
            log = await one.create(next(_names))
            other = two.log(log.topic)
            await other.current()
            for number in range(300):
                await append(log, plain(b"%d" % number))
            woken: list[int] = []
            other.waiters["test"] = lambda: woken.append(other.end)
            await other.current()
            assert other.end == 300
            assert woken
            assert other.state.snapshot() == log.state.snapshot()

    uvloop.run(run())


def test_a_reader_passed_by_retention_starts_from_the_snapshot(server: RedisServer) -> None:
    async def run() -> None:
        async with Host(server.url, "a") as one, Host(server.url, "b") as two:
            log = await one.create(next(_names))
            other = two.log(log.topic)
            await append(log, sequenced(5, 0))
            await other.current()
            for number in range(1, 200):
                await append(log, sequenced(5, number))
            await log.save_snapshot()
            await one.streams.trim(log.key, 150)
            woken: list[int] = []
            other.waiters["test"] = lambda: woken.append(other.end)
            await other.current()
            assert other.end == 200
            assert woken
            assert other.state.producers == log.state.producers
            assert await append(other, sequenced(5, 199)) == 199

    uvloop.run(run())


def test_restart_replays_from_the_snapshot(server: RedisServer) -> None:
    async def run() -> None:
        name = next(_names)
        async with Host(server.url, "a", snapshot_entries=10) as one:
            log = await one.create(name)
            for number in range(57):
                await append(log, sequenced(5, number))
            await until_snapshot(one, log, 50)
            before = log.state.snapshot()
        async with Host(server.url, "b") as two:
            again = two.log(name)
            await again.current()
            assert again.state.snapshot() == before
            assert await append(again, sequenced(5, 54)) == 54
            assert await append(again, sequenced(5, 57)) == 57

    uvloop.run(run())


async def until_snapshot(host: Host, log: Any, offset: int) -> None:
    async with asyncio.timeout(30):
        end = 0
        while end < offset:
            end = LogState.restore((await host.streams.saved_state(log.key)).snapshot).end
            await asyncio.sleep(0.002)


def test_loading_fails_and_is_tried_again(server: RedisServer) -> None:
    async def run() -> None:
        async with StoreProxy(server.port) as proxy, Host(proxy.url, "a") as host:
            log = await host.create(next(_names))
            proxy.refusing = True
            (await proxy.link("a-reads")).cut()
            await until(lambda: not host.reads.is_up)
            with pytest.raises(StoreFault):
                await append(log, plain(b"x"))
            assert log.phase is Phase.UNLOADED
            proxy.refusing = False
            await host.reads.wait_up()
            assert await append(log, plain(b"y")) == 0

    uvloop.run(run())


def test_deleted_while_loading_stays_deleted(server: RedisServer) -> None:
    async def run() -> None:
        async with StoreProxy(server.port) as proxy, Host(proxy.url, "a") as host:
            log = await host.create(next(_names))
            link = await proxy.link("a-reads")
            link.replies.hold()
            out = begin(log, plain(b"x"))
            await until(lambda: link.replies.waiting > 0)
            log.gone()
            link.cut()
            with pytest.raises(KafkaError):
                await out.outcome
            await host.reads.wait_up()
            await asyncio.sleep(0.01)
            assert log.phase is Phase.GONE

    uvloop.run(run())


def test_what_is_not_a_batch_in_the_log_is_reported_and_nothing_hangs(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with Host(server.url) as host:
            log = await host.create(next(_names))
            await append(log, plain(b"x"))
            with redis_py.from_url(server.url) as client:
                client.xadd(log.key, {"b": "no batch"}, id="1-1")
            for _ in range(2):
                with pytest.raises(Exception):  # noqa: B017 - any answer will do
                    async with asyncio.timeout(20):
                        await append(log, plain(b"y"))
            # The connection it came over serves others.
            healthy = await host.create(next(_names))
            assert await append(healthy, plain(b"z")) == 0

    uvloop.run(run())
    assert "log-" in caplog.text


def test_entries_the_watcher_brings_are_folded_in(server: RedisServer) -> None:
    async def run() -> None:
        async with Host(server.url, "a") as one, Host(server.url, "b") as two:
            log = await one.create(next(_names))
            other = two.log(log.topic)
            await other.current()
            for number in range(6):
                await append(log, plain(b"%d" % number))
            entries = await stored(one, log)
            other.received(entries[:2])
            assert other.end == 2
            other.received(entries[:3])  # some of it known
            assert other.end == 3
            other.received(entries[4:])  # something missing before: it reads on by itself
            await until(lambda: other.end == 6)
            assert (
                read_header(
                    b"".join(other.read_tail(5, 1 << 20, at_least_one=True) or [])
                ).base_offset
                == 5
            )

    uvloop.run(run())


def test_large_entries_are_read_by_the_piece(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are: neither the store nor we hold many at a time."""

    async def run() -> None:
        async with Host(server.url, "a") as one, Host(server.url, "b") as two:
            log = await one.create(next(_names))
            for _ in range(30):
                await append(log, plain(b"x" * 400_000))
            asked: list[int] = []
            first_entries, read_on = two.streams.first_entries, two.streams.read_on

            async def counted(key: bytes, offset: int, count: int) -> Any:
                asked.append(count)
                return await first_entries(key, offset, count)

            def counted_on(key: bytes, offset: int, count: int, done: Any) -> None:
                asked.append(count)
                read_on(key, offset, count, done)

            monkeypatch.setattr(two.streams, "first_entries", counted)
            monkeypatch.setattr(two.streams, "read_on", counted_on)
            other = two.log(log.topic)
            await other.current()
            assert other.end == 30
            for _ in range(30):
                await append(log, plain(b"x" * 400_000))
            await other.current()
            assert other.end == 60
            assert max(asked) * 400_000 <= MOST_BYTES
            assert other.state.snapshot() == log.state.snapshot()

    uvloop.run(run())
