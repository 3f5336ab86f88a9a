"""How a partition's log keeps up with what others appended: catching up, loading, snapshots."""

import asyncio
from itertools import count
from typing import Any

import pytest
import redis as redis_py

from moldau.broker.errors import KafkaError, StoreFault
from moldau.broker.log.state.loading import MAX_BYTES_PER_READ
from moldau.broker.log.state.log_state import LogState
from moldau.broker.log.writing.phases import Phase
from moldau.broker.wire.batch import read_header
from tests.support.drivers.log_host import Host, WaitedAppend, append, begin, stored, until
from tests.support.stores.proxy import StoreProxy
from tests.support.stores.redis_server import RedisServer
from tests.unit.log.log_batches import plain, sequenced

_names = (f"log-{number}" for number in count())


async def test_current_does_not_wait_for_the_queue_to_run_dry(server: RedisServer) -> None:
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
            async with asyncio.timeout(30):
                await log.current()
        stop = True
        await until(lambda: not log.is_busy)
        assert appended == log.end


async def test_a_reader_far_behind_catches_up(server: RedisServer) -> None:
    async with Host(server.url, "a") as one, Host(server.url, "b") as two:
        log = await one.create(next(_names))
        other = two.log(log.topic)
        await other.current()
        for number in range(300):
            await append(log, plain(b"%d" % number))
        woken: list[int] = []
        other.waiters.add("test", lambda: woken.append(other.end))
        await other.current()
        assert other.end == 300
        assert woken
        assert other.reader.state.snapshot() == log.reader.state.snapshot()


async def test_a_reader_passed_by_retention_starts_from_the_snapshot(server: RedisServer) -> None:
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
        other.waiters.add("test", lambda: woken.append(other.end))
        await other.current()
        assert other.end == 200
        assert woken
        assert other.reader.state.producers == log.reader.state.producers
        assert await append(other, sequenced(5, 199)) == 199


async def test_restart_replays_from_the_snapshot(server: RedisServer) -> None:
    name = next(_names)
    async with Host(server.url, "a", snapshot_entries=10) as one:
        log = await one.create(name)
        for number in range(57):
            await append(log, sequenced(5, number))
        await until_snapshot(one, log, 50)
        before = log.reader.state.snapshot()
    async with Host(server.url, "b") as two:
        again = two.log(name)
        await again.current()
        assert again.reader.state.snapshot() == before
        assert await append(again, sequenced(5, 54)) == 54
        assert await append(again, sequenced(5, 57)) == 57


async def until_snapshot(host: Host, log: Any, offset: int) -> None:
    async with asyncio.timeout(30):
        end = 0
        while end < offset:
            end = LogState.restore((await host.streams.saved_state(log.key)).snapshot).end
            await asyncio.sleep(0.002)


async def test_loading_fails_and_is_tried_again(server: RedisServer) -> None:
    async with StoreProxy(server.port) as proxy, Host(proxy.url, "a") as host:
        log = await host.create(next(_names))
        proxy.refusing = True
        (await proxy.link("a-reads")).cut()
        await until(lambda: not host.reads.is_up)
        with pytest.raises(StoreFault):
            await append(log, plain(b"x"))
        assert log.writer.phase is Phase.UNLOADED
        proxy.refusing = False
        await host.reads.wait_up()
        assert await append(log, plain(b"y")) == 0


async def test_deleted_while_loading_stays_deleted(server: RedisServer) -> None:
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
        assert log.writer.phase is Phase.GONE


async def test_what_is_not_a_batch_in_the_log_is_reported_and_nothing_hangs(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with Host(server.url) as host:
        log = await host.create(next(_names))
        await append(log, plain(b"x"))
        with redis_py.from_url(server.url) as client:
            client.xadd(log.key, {"b": "no batch"}, id="1-1")
        for _ in range(2):
            with pytest.raises(Exception):  # noqa: B017 - any answer will do
                async with asyncio.timeout(30):
                    await append(log, plain(b"y"))
        # The connection it came over serves others.
        healthy = await host.create(next(_names))
        assert await append(healthy, plain(b"z")) == 0
    assert "log-" in caplog.text


async def test_entries_the_watcher_brings_are_folded_in(server: RedisServer) -> None:
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
                b"".join(other.reader.read_tail(5, 1 << 20, at_least_one=True) or [])
            ).base_offset
            == 5
        )


async def test_large_entries_are_read_by_the_piece(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are: neither the store nor we hold many at a time."""

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
        assert max(asked) * 400_000 <= MAX_BYTES_PER_READ
        assert other.reader.state.snapshot() == log.reader.state.snapshot()
