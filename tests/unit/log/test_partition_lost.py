"""Connections that are lost while a partition's log has an append out: appended once, said once.

A proxy stands in for the network; every interleaving is chosen. Random ones are in tests/chaos.
"""

import asyncio
from itertools import count
from typing import Any

from moldau.broker.log.writing.phases import Phase
from tests.support.drivers.log_host import Host, append, begin, stored, until
from tests.support.stores.proxy import StoreProxy
from tests.support.stores.redis_server import RedisServer
from tests.unit.log.log_batches import plain, values

_names = (f"log-{number}" for number in count())


async def test_reply_lost_the_entry_is_found(server: RedisServer) -> None:
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


async def test_request_lost_it_is_sent_again(server: RedisServer) -> None:
    async with StoreProxy(server.port) as proxy, Host(proxy.url, "a") as host:
        log = await host.create(next(_names))
        await append(log, plain(b"x"))
        for cut_at in (0, 1, 40, 100):
            link = await proxy.link("a-bulk")
            link.requests.stop_after(cut_at, link.cut)
            out = begin(log, plain(b"%d" % cut_at))
            await out.outcome
        assert await values(host, log) == [b"x", b"0", b"1", b"40", b"100"]


async def test_an_append_that_arrives_after_it_was_missed_is_not_appended_twice(
    server: RedisServer,
) -> None:
    """Lost, not found in the log, sent again; then the first one arrives, before the second."""

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


def void(_: object) -> None:
    """Drop the value of a lambda."""


async def until_stored(host: Host, log: Any, entries: int) -> None:
    async with asyncio.timeout(30):
        while len(await stored(host, log)) < entries:  # noqa: ASYNC110
            await asyncio.sleep(0.002)


async def test_late_arrival_behind_another_writers_append(server: RedisServer) -> None:
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


async def test_identical_batches_of_two_writers_are_distinguished(server: RedisServer) -> None:
    """The other's entry at our place holds the very bytes we sent: the nonce differs."""

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


async def test_a_store_that_stops_answering_counts_as_lost(server: RedisServer) -> None:
    async with StoreProxy(server.port) as proxy, Host(proxy.url, "a", stall_after=0.2) as host:
        log = await host.create(next(_names))
        await append(log, plain(b"x"))
        link = await proxy.link("a-bulk")
        link.replies.hold()  # half open: nothing ever comes back
        assert await append(log, plain(b"y")) == 1
        assert await values(host, log) == [b"x", b"y"]


async def test_what_waits_behind_an_unknown_outcome_can_be_given_up(server: RedisServer) -> None:
    """While the store is down clients retry: what they gave up is dropped from the queue."""

    async with StoreProxy(server.port) as proxy, Host(proxy.url, "a") as host:
        log = await host.create(next(_names))
        await append(log, plain(b"x"))
        proxy.refusing = True
        link = await proxy.link("a-bulk")
        link.requests.hold()
        out = begin(log, plain(b"first"))
        await until(lambda: link.requests.waiting > 0)
        link.cut()
        await until(lambda: log.writer.phase is Phase.RESOLVING)
        for _ in range(20):
            waiting = [begin(log, plain(b"again")) for _ in range(10)]
            for one in waiting:
                one.given_up = True
            assert len(log.writer._waiting) == len(waiting)
        proxy.refusing = False
        assert await out.outcome == 1
        assert await values(host, log) == [b"x", b"first"]
