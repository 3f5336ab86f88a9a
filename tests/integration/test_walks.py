"""The modules that a request passes, from the arrival of its frame to the write of the reply.

A reader of the hot paths has to open them all, so there must be few: merging what belongs together
lowers these numbers, and a new layer raises them. They are counted in a worker that runs in this
process, over several requests: what only some of them meet (a timer, a notice) does not count.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from moldau.broker.settings.processes import Endpoint, Listener, ProcessListener, WorkerSettings
from moldau.broker.wire.consumer_protocol import encode_assignment
from moldau.broker.worker import Worker
from tests.support.raw.calls import create_topic
from tests.support.raw.client import RawClient, make_batch
from tests.support.raw.group import RawMember
from tests.support.stores.redis_server import RedisServer

TRIES = 4
ENDLESS = 86_400_000


class OneWorker(Worker):
    """A worker of this process, which no supervisor watches."""

    async def _watch_parent(self) -> None:
        await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def running_worker(store: str, directory: Path) -> AsyncIterator[int]:
    """Its port."""
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(str(directory / "worker.sock"))
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    listener = Listener(port=port, advertised_port=port)
    served = [Endpoint(0, listener.host, port)]
    # The worker takes over both sockets.
    settings = WorkerSettings(
        index=0,
        unix_socket=unix.detach(),
        listeners=[ProcessListener(listener, port, served, [listening.detach()])],
        workers=1,
        redis_url=store,
        data_dir=str(directory),
        broker_configs={"log.retention.check.interval.ms": str(ENDLESS)},
        tail_cache_bytes=1 << 20,
    )
    worker = OneWorker(settings)
    await worker.startup()
    try:
        yield port
    finally:
        await worker.shutdown()


class Walk:
    """The modules of ours whose functions run while it is entered, in order of first touch."""

    def __init__(self) -> None:
        self.modules: dict[str, None] = {}

    def _note(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "call":
            name = frame.f_globals.get("__name__", "")
            if name.startswith("moldau."):
                self.modules[name] = None

    def __enter__(self) -> Walk:
        sys.setprofile(self._note)  # of this thread: clients are in others
        return self

    def __exit__(self, *exc: object) -> None:
        sys.setprofile(None)


async def walk_of(ask: Callable[[int], object]) -> list[str]:
    """The modules that every one of several requests passes."""
    walks = []
    for number in range(TRIES):
        await asyncio.sleep(0.05)  # what earlier requests left to do is done
        with Walk() as walk:
            await asyncio.to_thread(ask, number)
        walks.append(walk.modules)
    return [module for module in walks[0] if all(module in walk for walk in walks)]


def check(walk: list[str], most: int) -> None:
    named = "\n  ".join(module.removeprefix("moldau.broker.") for module in walk)
    assert len(walk) <= most, f"{len(walk)} modules, not {most}:\n  {named}"


def with_topic(port: int, name: str, *, batches: int = 1, size: int = 10, **configs: str) -> str:
    with RawClient(port) as client:
        create_topic(client, name, {key.replace("_", "."): value for key, value in configs.items()})
        for _ in range(batches):
            client.produce(name, make_batch([(b"key", bytes(size), 1)]))
    return name


async def test_produce(server: RedisServer, short_tmp_path: Path) -> None:
    """A repeated request, the first one of a connection, and the first one to a log."""
    batch = make_batch([(b"key", b"value", 1)])
    async with running_worker(server.url, short_tmp_path) as port:
        topic = await asyncio.to_thread(with_topic, port, "produced")
        unknown = [
            await asyncio.to_thread(with_topic, port, f"unknown-{number}", batches=0)
            for number in range(TRIES)
        ]
        clients = await asyncio.to_thread(lambda: [RawClient(port) for _ in range(2 * TRIES)])

        def again(number: int) -> None:
            assert clients[0].produce(topic, batch).error_code == 0

        def first(number: int) -> None:
            assert clients[1 + number].produce(topic, batch).error_code == 0

        def first_of_log(number: int) -> None:
            assert clients[-1 - number].produce(unknown[number], batch).error_code == 0

        for _ in range(2):
            await asyncio.to_thread(again, 0)
        walks = [await walk_of(again), await walk_of(first), await walk_of(first_of_log)]
        for client in clients:
            client.close()
    check(walks[0], 18)
    check(walks[1], 25)
    check(walks[2], 35)


async def test_fetch(server: RedisServer, short_tmp_path: Path) -> None:
    """From the tail cache, and from the store."""
    async with running_worker(server.url, short_tmp_path) as port:
        topic = await asyncio.to_thread(with_topic, port, "fetched", batches=40, size=100_000)
        with RawClient(port) as client:

            def fetch(offset: int, number: int) -> None:
                assert client.fetch(topic, offset, max_bytes=150_000).records

            await asyncio.to_thread(fetch, 0, 0)
            cached = await walk_of(partial(fetch, 39))
            stored = await walk_of(partial(fetch, 5))
    check(cached, 18)
    check(stored, 23)


async def test_native_fetch(server: RedisServer, short_tmp_path: Path) -> None:
    """By a member of a group, and by a client that is in none."""
    async with running_worker(server.url, short_tmp_path) as port:
        topic = await asyncio.to_thread(with_topic, port, "native", moldau_storage="native")
        with await asyncio.to_thread(RawMember, port, "readers") as member:
            await asyncio.to_thread(member.enter, encode_assignment(1, [(topic, 0)]))

            def fetch(number: int) -> None:
                assert member.fetch(topic, 0, max_wait_ms=100, min_bytes=1).records

            await asyncio.to_thread(fetch, 0)
            by_member = await walk_of(fetch)
            assert await asyncio.to_thread(member.leave) == 0
            await asyncio.to_thread(fetch, 0)
            by_anyone = await walk_of(fetch)
    check(by_member, 30)
    check(by_anyone, 29)
