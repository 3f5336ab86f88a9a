"""The store of one worker: its connections, and the commands by subject."""

from __future__ import annotations

import asyncio
import time

from broker.store.cleaned import Cleaned
from broker.store.groups import GroupStore
from broker.store.native import NativeStreams
from broker.store.pipe import Pipe
from broker.store.streams import Streams
from broker.store.target import Target
from broker.store.topics import TopicStore

REPLICAS_EVERY = 0.5  # seconds


class Store:
    """Separate connections by what they carry, so that none waits behind another's bytes.

    bulk: appends; replicated: WAIT for replicas; reads: logs; control: small commands;
    groups: groups and offsets, in one order; blocking: the watcher's XREAD.
    """

    def __init__(self, url: str, worker: int, workers: int = 1) -> None:
        target = Target(url)
        self.label = target.label

        def pipe(what: str, *, stall_after: float | None = 20.0) -> Pipe:
            return Pipe(target, f"moldau-{worker}-{what}", stall_after=stall_after)

        self.bulk = pipe("bulk")
        self.replicated = pipe("replicated", stall_after=120.0)
        self.reads = pipe("reads")
        self.control = pipe("control")
        self.groups_pipe = pipe("groups")
        self.blocking = pipe("blocking", stall_after=60.0)
        self.streams = Streams(self.bulk, self.replicated, self.reads, self.control)
        self.cleaned = Cleaned(self.bulk, self.control)
        self.topics = TopicStore(self.control, worker, workers)
        self.native = NativeStreams(self.bulk, self.reads, self.control, self.groups_pipe)
        self.groups = GroupStore(self.groups_pipe)
        self._replicas: asyncio.Future[int] | None = None
        self._replicas_asked = -REPLICAS_EVERY

    async def connect(self) -> None:
        await asyncio.gather(*(pipe.connect() for pipe in self._pipes()))

    def close(self) -> None:
        for pipe in self._pipes():
            pipe.close()

    @property
    def is_up(self) -> bool:
        return self.bulk.is_up and self.reads.is_up and self.control.is_up

    def _pipes(self) -> tuple[Pipe, ...]:
        return (
            self.bulk,
            self.replicated,
            self.reads,
            self.control,
            self.groups_pipe,
            self.blocking,
        )

    async def replicas(self) -> int:
        """How many replicas of the store are online; asked at most twice a second.

        A request that needs more can be refused before anything is written.
        """
        now = time.monotonic()
        if now - self._replicas_asked >= REPLICAS_EVERY:
            self._replicas_asked = now
            self._replicas = asyncio.ensure_future(self._count_replicas())
        assert self._replicas is not None
        return await asyncio.shield(self._replicas)

    async def _count_replicas(self) -> int:
        facts = await self._info("replication")
        states = (value for name, value in facts.items() if name.startswith(b"slave"))
        return sum(b"state=online" in state for state in states)

    async def _info(self, section: str) -> dict[bytes, bytes]:
        text: bytes = await self.control.ask("INFO", section)
        pairs = (line.partition(b":") for line in text.splitlines())
        return {name: value for name, colon, value in pairs if colon}

    async def capacity(self) -> tuple[int, int]:
        """The memory limit and what is left of it; -1 and -1 without a limit."""
        facts = await self._info("memory")
        limit = int(facts.get(b"maxmemory", 0))
        if not limit:
            return -1, -1
        return limit, max(limit - int(facts.get(b"used_memory", 0)), 0)
