"""Native streams in a real store: the commands as coroutines, on every server that is installed."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from moldau.broker.errors import StoreFault
from moldau.broker.store.connector import Connector
from moldau.broker.store.native import Expected, NativeStreams, RawEntries
from moldau.broker.store.pipe import Pipe
from moldau.ops.serve.embedded_store import server_binary
from tests.support.stores.redis_server import SEARCH_PATH, RedisServer

STREAM, BASE = b"moldau:t:0", b"moldau:t:0"
MEMBER = "app-6f0f1dd7-9bd6-4d2c-a3b6-0f0f0f0f0f0f"
OTHER = "app-00000000-0000-4000-8000-000000000000"

SERVERS = {"valkey": str(server_binary())}
if installed := shutil.which("redis-server", path=SEARCH_PATH):
    SERVERS["redis"] = installed


class NativeStore:
    """The commands, as coroutines."""

    def __init__(self, native: NativeStreams) -> None:
        self.native = native

    async def append(
        self,
        *values: bytes,
        producer: tuple[int, int, int] = (-1, -1, 0),
        bits: int = 10,
        least: tuple[int, int] = (0, 0),
    ) -> tuple[bytes, ...] | StoreFault:
        words: list[bytes | int] = [(1 << bits) - 1, *least, *producer, len(values), b"vt"]
        for value in values:
            words += (value, b"1700000000000")
        done: asyncio.Future[tuple[bytes, ...] | StoreFault] = asyncio.Future()
        self.native.append(STREAM, BASE, words, done.set_result)
        return await done

    async def read_group(
        self, first: bytes, count: int = 100, limit: int = 1 << 20
    ) -> tuple[list[bytes], Expected]:
        done: asyncio.Future[tuple[Any, Any]] = asyncio.Future()

        def finish(entries: RawEntries | StoreFault, expected: Expected | StoreFault) -> None:
            done.set_result((entries, expected))

        self.native.read_group(STREAM, BASE, "g", MEMBER, first, count, limit, finish)
        entries, expected = await done
        assert not isinstance(entries, StoreFault), entries
        return [raw for raw, _ in entries], expected

    async def reply(self, ask: Callable[..., None], *words: Any) -> Any:
        done: asyncio.Future[Any] = asyncio.Future()
        ask(*words, done.set_result)
        return await done


@asynccontextmanager
async def opened(server: RedisServer) -> AsyncIterator[NativeStore]:
    pipes = [Pipe(Connector(server.url), name) for name in ("bulk", "reads", "control", "groups")]
    for pipe in pipes:
        await pipe.connect()
    native = NativeStreams(*pipes)
    try:
        await native.create(STREAM, BASE)
        yield NativeStore(native)
    finally:
        for pipe in pipes:
            pipe.close()


def ids(client: Any) -> list[tuple[int, int]]:
    return [id_of(raw) for raw, _ in client.xrange(STREAM)]


def values(client: Any) -> list[bytes]:
    return [fields.get(b"value", b"") for _, fields in client.xrange(STREAM)]


def id_of(raw: bytes) -> tuple[int, int]:
    ms, _, seq = raw.partition(b"-")
    return int(ms), int(seq)


def following(one: tuple[int, int], bits: int = 10) -> tuple[int, int]:
    ms, seq = one
    return (ms, seq + 1) if seq + 1 < 1 << bits else (ms + 1, 0)


def add_entries(client: Any, count: int, value: bytes, first: int = 1) -> None:
    with client.pipeline(transaction=False) as pipe:
        for ms in range(first, first + count):
            pipe.xadd(STREAM, {"value": value}, id=f"{ms}-0")
        pipe.execute()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
