"""The store of one worker: its connections, and the commands by subject."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from moldau.broker.errors import StoreFault
from moldau.broker.store.acls import AclStore
from moldau.broker.store.capacity import Capacity, of_server, of_this_machine, smallest
from moldau.broker.store.cleaned import Cleaned
from moldau.broker.store.confirmation import Confirmation
from moldau.broker.store.connector import Connector
from moldau.broker.store.groups import GroupStore
from moldau.broker.store.local_server import is_disk_limit
from moldau.broker.store.log_integrity import EpochStore, LogIntegrityStore
from moldau.broker.store.native import NativeStreams
from moldau.broker.store.native_views import NativeViews
from moldau.broker.store.pipe import Pipe
from moldau.broker.store.quotas import QuotaStore
from moldau.broker.store.replication import Replication
from moldau.broker.store.sentinel import follow
from moldau.broker.store.store_id import StoreIdentity
from moldau.broker.store.streams import Streams
from moldau.broker.store.tokens import TokenStore
from moldau.broker.store.topics import TopicStore
from moldau.broker.store.transactions import TransactionStore
from moldau.broker.store.users import UserStore

logger = logging.getLogger("moldau.store")

PATIENCE_S = 30.0  # a worker that starts waits this long for the store
RETRY_S = 0.1
# The fields of INFO that metrics show.
STORE_FACTS = (
    "used_memory",
    "maxmemory",
    "aof_current_size",
    "aof_rewrite_in_progress",
    "aof_pending_bio_fsync",
    "aof_delayed_fsync",
)


_LAST_WRITE = b"aof_last_write_status"


class StoreFiles(NamedTuple):
    """The embedded store's files."""

    store_id: Path
    append_only: Path  # a directory


class Store:
    """A connection for each purpose, so that none waits behind another's bytes.

    bulk: appends; replicated: WAIT for replicas; reads: logs; control: small commands;
    groups: groups, offsets and transactions, in one order; blocking: the watcher's XREAD.
    """

    def __init__(
        self, url: str, worker: int, workers: int = 1, files: StoreFiles | None = None
    ) -> None:
        self._connector = connector = Connector(url)
        self._following: asyncio.Task[None] | None = None
        self._files = files
        self.label = connector.label
        self.identity = StoreIdentity(files.store_id if files is not None else None)

        def pipe(what: str, *, stall_after: float | None = 20.0) -> Pipe:
            name = f"moldau-{worker}-{what}"
            return Pipe(connector, name, stall_after=stall_after, identity=self.identity)

        self.bulk = pipe("bulk")
        self.replicated = pipe("replicated", stall_after=30.0)
        self.reads = pipe("reads")
        self.control = pipe("control")
        self.groups_pipe = pipe("groups")
        self.blocking = pipe("blocking", stall_after=60.0)
        self.streams = Streams(self.bulk, self.reads, self.control)
        append_only = files.append_only if files is not None else None
        self.confirmation = Confirmation(self.identity, self.replicated, append_only)
        self.replication = Replication(self.identity, self.replicated)
        self.log_integrity = LogIntegrityStore(self.control, worker)
        self.cleaned = Cleaned(self.bulk, self.control)
        self.topics = TopicStore(self.control, worker, workers)
        self.quotas = QuotaStore(self.control)
        self.epochs = EpochStore(self.control)
        self.users = UserStore(self.control)
        self.acls = AclStore(self.control)
        self.tokens = TokenStore(self.control)
        self.native = NativeStreams(self.bulk, self.reads, self.control, self.groups_pipe)
        self.native_views = NativeViews(self.control, self.native)
        self.groups = GroupStore(self.groups_pipe)
        self.transactions = TransactionStore(self.groups, self.groups_pipe)

    async def connect(self) -> None:
        """Connect. Raises StoreFault; then `close` the store, and make another."""
        connecting = (pipe.connect() for pipe in self._pipes())
        # Await all of them: nobody would close a connection that opens later.
        for fault in await asyncio.gather(*connecting, return_exceptions=True):
            if fault is not None:
                raise fault
        if self._connector.sentinels is not None:
            work = follow(self._connector.sentinels, self._pipes)
            self._following = asyncio.get_running_loop().create_task(work)

    def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
        for pipe in self._pipes():
            pipe.close()

    @property
    def is_up(self) -> bool:
        return self.bulk.is_up and self.reads.is_up and self.control.is_up

    def connections(self) -> dict[str, Pipe]:
        """The connections that carry clients' requests, by purpose."""
        return {
            "appends": self.bulk,
            "reads": self.reads,
            "control": self.control,
            "groups": self.groups_pipe,
        }

    async def facts(self) -> dict[str, int]:
        """Facts of the server, for metrics, as far as it tells them. Raises StoreFault."""
        found = {**await self._info("memory"), **await self._info("persistence")}
        wanted = {name.encode(): name for name in STORE_FACTS}
        facts = {wanted[name]: int(value) for name, value in found.items() if name in wanted}
        if self._is_limited_by_disk(found):
            facts["maxmemory"] = 0
        if _LAST_WRITE in found:
            facts["aof_last_write_failed"] = int(found[_LAST_WRITE] != b"ok")
        return facts

    async def why_full(self) -> str:
        """Why the server refuses writes, and what to do about it. Raises StoreFault."""
        found = {**await self._info("memory"), **await self._info("persistence")}
        if found.get(_LAST_WRITE, b"ok") != b"ok":
            return "it cannot write its file (a full disk?): make room on its disk"
        if self._is_limited_by_disk(found):
            return (
                "its disk is nearly full: make room on it, or lower retention or delete topics "
                "(`moldau status` shows the disk)"
            )
        return "raise its maxmemory, lower retention or delete topics"

    def _is_limited_by_disk(self, memory: dict[bytes, bytes]) -> bool:
        return self.identity.is_kept and is_disk_limit(int(memory.get(b"maxmemory", 0)))

    def _pipes(self) -> tuple[Pipe, ...]:
        return (
            self.bulk,
            self.replicated,
            self.reads,
            self.control,
            self.groups_pipe,
            self.blocking,
        )

    async def watch_identity(self) -> None:
        """See `StoreIdentity.watch`."""
        await self.identity.watch(self.control)

    @property
    def replicas(self) -> int:
        """How many replicas of the store are online, at most half a second old.

        A request that needs more can be refused before anything is written.
        """
        return self.identity.replicas

    async def _info(self, section: str) -> dict[bytes, bytes]:
        text: bytes = await self.control.ask("INFO", section)
        pairs = (line.partition(b":") for line in text.splitlines())
        return {name: value for name, colon, value in pairs if colon}

    async def capacity(self) -> Capacity:
        """How much the store can hold, and how much is left. Raises StoreFault."""
        facts = await self._info("memory")
        if self._is_limited_by_disk(facts):
            facts[b"maxmemory"] = b"0"  # the disk guard's way to refuse writes, no limit of memory
        known = of_server(facts)
        if self._files is not None:
            # In a thread: a file system may be slow to answer.
            known += await asyncio.to_thread(of_this_machine, self._files.append_only)
        return smallest(known)


async def reached(make: Callable[[], Store]) -> Store:
    """Make a store and connect it. A server that has just died may be back soon, and a new worker
    process would have to import everything again: so wait a while. Raises StoreFault."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + PATIENCE_S
    is_waiting = False
    while True:
        store = make()
        try:
            await store.connect()
        except StoreFault as fault:
            store.close()
            if loop.time() >= give_up_at:
                raise
            if not is_waiting:
                logger.warning("waiting for the store, which cannot be reached: %s", fault)
            is_waiting = True
        else:
            return store
        await asyncio.sleep(RETRY_S)
