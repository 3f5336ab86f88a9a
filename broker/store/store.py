"""The store of one worker: its connections, and what is asked of them by subject."""

from __future__ import annotations

import asyncio

from broker.store.cleaned import Cleaned
from broker.store.pipe import Pipe, within
from broker.store.streams import CONTROL_TIMEOUT, Streams
from broker.store.target import Target
from broker.store.topics import TopicStore


class Store:
    """Connections apart by what they carry, so that none waits behind another's bytes.

    bulk: appends; replicated: appends that WAIT; reads: logs; control: small writes;
    blocking: the watcher's XREAD.
    """

    def __init__(self, url: str, worker: int) -> None:
        target = Target(url)
        self.label = target.label

        def pipe(what: str, *, stall_after: float | None = 20.0) -> Pipe:
            return Pipe(target, f"moldau-{worker}-{what}", stall_after=stall_after)

        self.bulk = pipe("bulk")
        self.replicated = pipe("replicated", stall_after=120.0)
        self.reads = pipe("reads")
        self.control = pipe("control")
        self.blocking = pipe("blocking", stall_after=60.0)
        self.streams = Streams(self.bulk, self.replicated, self.reads, self.control)
        self.cleaned = Cleaned(self.bulk, self.control)
        self.topics = TopicStore(self.control)

    async def connect(self) -> None:
        await asyncio.gather(*(pipe.connect() for pipe in self._pipes()))

    def close(self) -> None:
        for pipe in self._pipes():
            pipe.close()

    @property
    def is_up(self) -> bool:
        return self.bulk.is_up and self.reads.is_up and self.control.is_up

    def _pipes(self) -> tuple[Pipe, ...]:
        return (self.bulk, self.replicated, self.reads, self.control, self.blocking)

    async def capacity(self) -> tuple[int, int]:
        """The store's memory limit and what is left of it; -1 and -1 when it has none."""
        text: bytes = await within(CONTROL_TIMEOUT, self.control.call("INFO", "memory"))
        facts = dict(line.split(b":", 1) for line in text.splitlines() if b":" in line)
        limit = int(facts.get(b"maxmemory", 0))
        if not limit:
            return -1, -1
        return limit, max(limit - int(facts.get(b"used_memory", 0)), 0)
