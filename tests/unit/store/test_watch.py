"""The watcher: what others do is heard of soon, also of logs added while it waits."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count

import pytest

from moldau.broker.store import keys
from moldau.broker.store.change_acks import Acknowledgement
from moldau.broker.store.connector import Connector
from moldau.broker.store.native import RawEntries
from moldau.broker.store.pipe import Pipe
from moldau.broker.store.streams import Entry, wake_command
from moldau.broker.store.topics import Change, TopicStore
from moldau.broker.store.watch import Watcher
from tests.support.stores.proxy import StoreProxy
from tests.support.stores.redis_server import RedisServer

_names = (b"moldau:watched:%d" % number for number in count())


class Heard:
    """A watcher of worker 0 and what it delivered."""

    def __init__(self, url: str) -> None:
        connector = Connector(url)
        self.blocking = Pipe(connector, "blocking", stall_after=60)
        self.control = Pipe(connector, "control")
        self.changes: list[str] = []
        self.woken: list[bytes] = []
        self.applied: list[Acknowledgement] = []
        self.entries: dict[bytes, list[int]] = {}
        self.native: dict[bytes, list[bytes]] = {}
        self.resets = 0
        self.watcher = Watcher(
            self.blocking,
            self.control,
            0,
            on_change=self._changed,
            on_wake=self.woken.append,
            on_applied=self.applied.append,
            on_entries=self._received,
            on_native=self._received_native,
            on_reset=self._reset,
        )

    def _changed(self, change: Change) -> None:
        if change.name == "broken":
            raise RuntimeError("on purpose")
        self.changes.append(change.name)

    def _received(self, key: bytes, entries: list[Entry]) -> None:
        self.entries.setdefault(key, []).extend(entry.base for entry in entries)

    def _received_native(self, key: bytes, entries: RawEntries) -> None:
        self.native.setdefault(key, []).extend(entry_id for entry_id, _ in entries)

    def _reset(self) -> None:
        self.resets += 1

    def tail(self, key: bytes) -> None:
        self.watcher.tail(key, 0)

    async def append(self, key: bytes, offset: int) -> None:
        await self.control.call("XADD", key, f"{offset}-1", "b", "x")


@asynccontextmanager
async def watching(url: str) -> AsyncIterator[Heard]:
    heard = Heard(url)
    await heard.blocking.connect()
    await heard.control.connect()
    heard.watcher.start(await TopicStore(heard.control).last_change())
    try:
        yield heard
    finally:
        await heard.watcher.close()
        heard.blocking.close()
        heard.control.close()
        await asyncio.sleep(0.01)


async def until(condition: Callable[[], bool]) -> None:
    # Below the 20 s after which a waiting XREAD returns by itself: it must be sooner.
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_changes_wake_ups_and_entries_are_reported(server: RedisServer) -> None:
    async with watching(server.url) as heard:
        key = next(_names)
        await TopicStore(heard.control).announce(Change("topic", "some"))
        await until(lambda: heard.changes == ["some"])
        heard.control.send((wake_command(keys.wake(0), key),), lambda reply: None)
        await until(lambda: heard.woken == [key])
        heard.tail(key)
        for offset in range(100):
            await heard.append(key, offset)
        await until(lambda: heard.entries.get(key) == list(range(100)))
        heard.watcher.untail(key)
        assert not heard.watcher.tails(key)


async def test_logs_added_in_quick_succession_are_all_heard_of(server: RedisServer) -> None:
    """Each restarts the XREAD; one added while that is in progress must not be missed."""

    async with watching(server.url) as heard:
        for turn in range(300):
            one, two = next(_names), next(_names)
            heard.tail(one)
            for _ in range(turn % 7):
                await asyncio.sleep(0)
            if turn % 3 == 0:
                await asyncio.sleep(turn % 5 / 5_000)
            heard.tail(two)
            await asyncio.gather(heard.append(one, 0), heard.append(two, 0))
            await until(lambda: len(heard.entries) == 2)
            heard.entries.clear()
            heard.watcher.untail(one)
            heard.watcher.untail(two)


async def test_one_added_between_the_new_wait_and_the_answer_to_the_unblock(
    server: RedisServer,
) -> None:
    async with StoreProxy(server.port) as proxy, watching(proxy.url) as heard:
        one, two = next(_names), next(_names)
        control, blocking = await proxy.link("control"), await proxy.link("blocking")
        await asyncio.sleep(0.05)
        control.replies.hold()
        sent = blocking.requests.passed
        heard.tail(one)
        await until(lambda: blocking.requests.passed > sent)  # it waits again, for one
        heard.tail(two)
        control.replies.release()
        await heard.append(two, 0)
        await until(lambda: two in heard.entries)


async def test_after_a_cut_it_says_so_and_goes_on(server: RedisServer) -> None:
    async with StoreProxy(server.port) as proxy, watching(proxy.url) as heard:
        key = next(_names)
        heard.tail(key)
        await heard.append(key, 0)
        await until(lambda: heard.entries.get(key) == [0])
        proxy.refusing = True
        (await proxy.link("blocking")).cut()
        await heard.append(key, 1)  # while it is disconnected
        await TopicStore(heard.control).announce(Change("topic", "missed"))
        proxy.refusing = False
        await until(lambda: heard.resets == 1)
        await until(lambda: heard.entries.get(key) == [0, 1])
        await until(lambda: heard.changes == ["missed"])


async def test_a_cut_control_connection_delays_a_new_log_only_a_little(server: RedisServer) -> None:
    async with StoreProxy(server.port) as proxy, watching(proxy.url) as heard:
        key = next(_names)
        await asyncio.sleep(0.05)
        link = await proxy.link("control")
        link.requests.hold()
        heard.tail(key)
        await until(lambda: link.requests.waiting > 0)
        link.cut()
        await proxy.link("control", other_than=link)
        await heard.control.wait_up()
        await heard.append(key, 0)
        await until(lambda: heard.entries.get(key) == [0])


async def test_a_listener_may_fail(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    async with watching(server.url) as heard:
        for name in ("broken", "fine"):
            await TopicStore(heard.control).announce(Change("topic", name))
            await asyncio.sleep(0.05)
        await until(lambda: heard.changes == ["fine"])
    assert "on purpose" in caplog.text


async def test_entries_of_native_streams_are_reported(server: RedisServer) -> None:
    async with watching(server.url) as heard:
        key = next(_names)
        ids = [await heard.control.call("XADD", key, "*", "a", "b") for _ in range(3)]
        heard.watcher.tail_native(key, ids[0])
        await until(lambda: heard.native.get(key) == ids[1:])
        ids += [await heard.control.call("XADD", key, "*", "a", "b") for _ in range(200)]
        await until(lambda: heard.native.get(key) == ids[1:])


async def test_a_key_that_is_no_stream_any_more_does_not_keep_others_from_us(
    server: RedisServer,
) -> None:
    async with watching(server.url) as heard:
        strange, good = next(_names), next(_names)
        heard.watcher.tail_native(strange, b"0-0")
        await heard.control.call("SET", strange, "text")
        heard.watcher.tail_native(good, b"0-0")
        entry = await heard.control.call("XADD", good, "*", "a", "b")
        await until(lambda: heard.native.get(good) == [entry])
        assert not heard.watcher.tails(strange)
        await TopicStore(heard.control).announce(Change("topic", "after"))
        await until(lambda: "after" in heard.changes)
