"""The pipelined connection: every command gets its own reply or a fault, come what may."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py

from moldau.broker.errors import (
    ErrorCode,
    StoreDown,
    StoreFault,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
    code_for,
)
from moldau.broker.store.connector import Connector
from moldau.broker.store.pipe import Pipe, command, reply_error, within
from moldau.broker.wire.batch import Buffer
from tests.support.stores.proxy import StoreProxy
from tests.support.stores.redis_server import RedisServer, start_redis


@asynccontextmanager
async def connected(url: str, *, stall_after: float | None = 20.0) -> AsyncIterator[Pipe]:
    pipe = Pipe(Connector(url), "pipe", stall_after=stall_after)
    await pipe.connect()
    try:
        yield pipe
    finally:
        pipe.close()
        await asyncio.sleep(0.01)


async def test_replies_come_in_the_order_of_commands(server: RedisServer) -> None:
    async with connected(server.url) as pipe:
        answers = [pipe.call("ECHO", f"{number}") for number in range(5_000)]
        assert await asyncio.gather(*answers) == [b"%d" % number for number in range(5_000)]


async def test_large_and_small_parts_arrive_as_one_command(server: RedisServer) -> None:
    async with connected(server.url) as pipe:
        value = random.Random(1).randbytes(3_000_000)
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        parts: list[Buffer] = [b"*3\r\n$3\r\nSET\r\n$5\r\nlarge\r\n$3000000\r\n", value[:10]]
        parts += [value[10:1_000_000], memoryview(value)[1_000_000:], b"\r\n"]
        pipe.send(parts, done.set_result)
        assert await done == "OK" or await done == b"OK"
        assert await pipe.call("GET", "large") == value


async def test_error_replies_are_faults_and_disturb_no_other_command(server: RedisServer) -> None:
    async with connected(server.url) as pipe:
        first, wrong, last = pipe.call("ECHO", "a"), pipe.call("NOSUCH"), pipe.call("ECHO", "b")
        assert (await first, await last) == (b"a", b"b")
        with pytest.raises(StoreRefused):
            await wrong
        with redis_py.from_url(server.url) as client:
            client.config_set("maxmemory", "1")
        try:
            with pytest.raises(StoreFull):
                await pipe.call("SET", "full", "x")
        finally:
            with redis_py.from_url(server.url) as client:
                client.config_set("maxmemory", "0")


async def test_no_store_there(short_tmp_path: Path) -> None:
    pipe = Pipe(Connector(f"unix://{short_tmp_path}/none.sock"), "pipe")
    with pytest.raises(StoreUnavailable, match=r"none\.sock"):
        await pipe.connect()


async def test_a_lost_connection_tells_all_who_wait_and_comes_back(server: RedisServer) -> None:
    async with StoreProxy(server.port) as proxy, connected(proxy.url) as pipe:
        ups: list[bool] = []
        pipe.on_up = lambda: ups.append(pipe.is_up)
        link = await proxy.link("pipe")
        link.replies.hold()
        replies: list[object] = []
        for number in range(10):
            pipe.send((command("ECHO", number),), replies.append)
        await until(lambda: link.replies.waiting > 0)
        proxy.refusing = True
        link.cut()
        await until(lambda: not pipe.is_up)
        assert len(replies) == 10
        assert all(type(reply) is StoreUnavailable for reply in replies)
        with pytest.raises(StoreDown):  # nothing was sent, so nothing can have happened
            await pipe.call("ECHO", "x")
        await asyncio.sleep(0.2)
        proxy.refusing = False
        await pipe.wait_up()
        assert ups == [True]
        assert await pipe.call("ECHO", "x") == b"x"
        assert len(replies) == 10


async def test_every_command_gets_its_own_reply_or_a_fault_however_often_the_connection_is_cut(
    server: RedisServer,
) -> None:
    chance = random.Random(2)
    async with StoreProxy(server.port) as proxy, connected(proxy.url) as pipe:

        def cut_some_time(link: Any) -> None:
            flow = chance.choice([link.requests, link.replies])
            flow.stop_after(chance.randrange(4_000), link.cut)

        proxy.on_link = cut_some_time
        cut_some_time(await proxy.link("pipe"))
        replied = answered = sent = 0

        def expect(number: int, reply: object) -> None:
            nonlocal replied, answered
            replied += 1
            if isinstance(reply, StoreFault):
                return
            assert reply == b"%d" % number
            answered += 1

        async with asyncio.timeout(60):
            while sent < 20_000 or len(proxy.links) < 40 or answered <= 1_000:
                for _ in range(chance.randrange(40)):
                    number = sent
                    sent += 1
                    pipe.send((command("ECHO", number),), partial(expect, number))
                await asyncio.sleep(0 if pipe.is_up else 0.001)
        proxy.on_link = lambda link: None
        live = proxy.live("pipe")
        if live is not None:
            live.cut()
        await until(lambda: replied == sent)


async def test_nothing_goes_out_before_the_password_and_the_database(short_tmp_path: Path) -> None:
    """A command sent the moment the connection is open must not land in database 0."""
    server = start_redis(short_tmp_path, "--requirepass", "secret")
    try:
        async with StoreProxy(server.port) as proxy:
            url = f"redis://:secret@127.0.0.1:{proxy.port}/3"
            async with connected(url) as pipe:
                incremented = 0
                for _ in range(40):
                    (await proxy.link("pipe")).cut()
                    deadline = asyncio.get_running_loop().time() + 0.08
                    while asyncio.get_running_loop().time() < deadline:
                        try:
                            await pipe.call("INCR", "here")
                        except (StoreDown, StoreUnavailable):
                            await asyncio.sleep(0)
                        else:
                            incremented += 1
                    await pipe.wait_up()
                assert incremented
        with redis_py.Redis(port=server.port, password="secret") as client:
            assert client.keys() == []
        with redis_py.Redis(port=server.port, password="secret", db=3) as client:
            assert client.keys() == [b"here"]
    finally:
        server.stop()


async def test_a_store_that_stops_answering_is_left(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with StoreProxy(server.port) as proxy, connected(proxy.url, stall_after=1.0) as pipe:
        await asyncio.sleep(1.5)  # idle is not stalled
        assert len(proxy.links) == 1
        (await proxy.link("pipe")).replies.hold()
        with pytest.raises(StoreUnavailable):
            await pipe.call("ECHO", "x")
        await pipe.wait_up()
        assert await pipe.call("ECHO", "y") == b"y"
    assert "no reply for" in caplog.text


async def test_a_store_that_is_slow_but_answers_is_not_left(server: RedisServer) -> None:
    async with StoreProxy(server.port) as proxy, connected(proxy.url, stall_after=2.0) as pipe:
        link = await proxy.link("pipe")
        link.replies.hold()
        answers = []
        for number in range(25):  # a reply is always pending, but never for long
            answers.append(pipe.call("ECHO", number))
            await asyncio.sleep(0.1)
            link.replies.release()
            await asyncio.sleep(0.01)
            link.replies.hold()
        link.replies.release()
        assert await asyncio.gather(*answers) == [b"%d" % number for number in range(25)]
        assert len(proxy.links) == 1


async def test_a_callback_that_fails_takes_no_other_along(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with StoreProxy(server.port) as proxy, connected(proxy.url) as pipe:

        def fails(reply: object) -> None:
            raise RuntimeError("on purpose")

        before, after = pipe.call("ECHO", "a"), None
        pipe.send((command("ECHO", "b"),), fails)
        after = pipe.call("ECHO", "c")
        assert (await before, await after) == (b"a", b"c")
        link = await proxy.link("pipe")
        link.replies.hold()
        pipe.send((command("ECHO", "b"),), fails)
        after = pipe.call("ECHO", "c")
        await until(lambda: link.replies.waiting > 0)
        link.cut()
        with pytest.raises(StoreUnavailable):
            await after
        await pipe.wait_up()
    assert caplog.text.count("a callback failed") == 2


async def test_what_is_not_the_protocol_closes_the_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And so does a reply to no command: after it, replies would go to the wrong callbacks."""
    garbage = asyncio.Event()
    accepted = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        await reader.readuntil(b"$2\r\nID\r\n")
        writer.write(b"+OK\r\n+PONG\r\n*1\r\n$6\r\nmaster\r\n:7\r\n")
        await garbage.wait()
        writer.write(b":1\r\n" if accepted == 1 else b"?\r\n")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with connected(f"redis://127.0.0.1:{port}") as pipe:
        assert pipe.client_id == 7
        garbage.set()
        await until(lambda: accepted >= 3)
    server.close()
    await asyncio.sleep(0.05)
    assert "a reply to no command" in caplog.text
    assert "Protocol error" in caplog.text


async def test_within_gives_up_waiting_not_the_command(server: RedisServer) -> None:
    async with StoreProxy(server.port) as proxy, connected(proxy.url) as pipe:
        link = await proxy.link("pipe")
        link.replies.hold()
        with pytest.raises(StoreFault, match="did not reply"):
            await within(0.05, pipe.call("SET", "late", "1"))
        link.replies.release()
        assert await pipe.call("GET", "late") == b"1"


async def until(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    "text",
    [
        "OOM command not allowed when used memory > 'maxmemory'.",
        "MISCONF Errors writing to the AOF file: No space left on device",
    ],
)
def test_a_store_without_memory_or_disk_is_full(text: str) -> None:
    fault = reply_error(text)
    assert isinstance(fault, StoreFull)
    assert code_for(fault) is ErrorCode.KAFKA_STORAGE_ERROR
