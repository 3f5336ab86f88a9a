"""Confirmed writes: the store has acknowledged them, and does not lose them when it fails.

- With replicas: every replica that is online has them (WAIT).
- The embedded store: this process has forced its append-only file to disk. The kernel has
  everything that the store replied to, unless a write to the file failed.
- Another server with an append-only file: WAITAOF, or, before Redis 7.2, the time that
  `appendfsync everysec` takes.
- A server that keeps no file, or never syncs it, promises nothing: there is nothing to wait for.

A slow disk is waited for. In the end StoreTimeout is raised: what was written may be lost.

One confirmation covers everything that was acknowledged before it began, whoever wrote it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from moldau.broker.errors import StoreFull, StoreRefused, StoreTimeout
from moldau.broker.store import keys
from moldau.broker.store.append_only import sync_files
from moldau.broker.store.pipe import REPLY_TIMEOUT, Pipe, within
from moldau.broker.store.store_id import StoreIdentity
from moldau.broker.store.topics import CALL_EVEN_IF_FULL

# A full store has to take it: new leader epochs are confirmed there too.
_WRITE_BARRIER = ("EVAL", CALL_EVEN_IF_FULL, 1, keys.BARRIER, "SET", 1)
ATTEMPTS = 10
WAIT_MS = 1000
SYNC_MS = 5000  # for one attempt
SYNCED_AFTER_S = 1.05  # `everysec` has begun to sync what was written before
LOOK_AGAIN_S = 0.05
IDLE_LOOKS = 2  # a server that has synced nothing after so many attempts never does


class Confirmation:
    """`append_only_files`: the directory of the embedded store's files; None: an external store."""

    def __init__(
        self, identity: StoreIdentity, pipe: Pipe, append_only_files: Path | None = None
    ) -> None:
        self._identity = identity
        self._pipe = pipe  # WAIT blocks its connection
        self._files = append_only_files
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None
        self._has_waitaof = True
        self._barrier = 0  # the connection that wrote this round's barrier
        self._syncs: bool | None = (
            None  # whether it syncs its append-only file; None: it does not say
        )
        self._syncs_at = b""  # the store id for which that is known
        self._idle_looks = 0

    @property
    def is_slow(self) -> bool:
        """May a confirmation take a second?"""
        facts = self._identity.facts
        return (
            self._files is None
            and facts.aof_enabled
            and self._syncs is not False
            and not facts.online
        )

    @property
    def means_something(self) -> bool:
        """Does the store keep what is confirmed? Without replicas and a synced file it may not."""
        facts = self._identity.facts
        return (
            self._files is not None
            or bool(facts.online)
            or (facts.aof_enabled and self._syncs is not False)
        )

    async def confirm(self) -> None:
        """Wait until everything that was acknowledged so far is safe. Raises StoreFault."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._round(self._running))
        await asyncio.shield(self._next)

    async def _round(self, previous: asyncio.Task[None] | None) -> None:
        if previous is not None:
            await asyncio.wait([previous])
        self._running, self._next = self._next, None  # from here on it is too late to join
        self._barrier = 0
        for _ in range(ATTEMPTS):
            if await self._try():
                return
            await self._identity.refresh(self._pipe)
        raise StoreTimeout("the store confirms nothing: a replica hangs, or its disk is slow")

    async def _try(self) -> bool:
        facts = self._identity.facts
        if replicas := len(facts.online):
            # WAIT covers what its own connection wrote last, so write something first.
            await self._pipe.ask(*_WRITE_BARRIER)
            reached: int = await self._pipe.ask("WAIT", replicas, WAIT_MS)
            return reached >= replicas
        if self._files is not None:
            if b"aof_last_write_status:err" in await self._pipe.ask("INFO", "persistence"):
                raise StoreFull("the store cannot write its file: its disk is full")
            await asyncio.to_thread(sync_files, self._files)
        elif facts.aof_enabled and await self._is_synced_at_all():
            return await self._is_synced() or await self._never_syncs()
        return True

    async def _is_synced_at_all(self) -> bool:
        store_id = self._identity.store_id
        if self._syncs_at != store_id:
            self._syncs_at, self._idle_looks = store_id, 0
            await self._ask_policy()
        return self._syncs is not False

    async def _ask_policy(self) -> None:
        try:
            found: list[bytes] = await self._pipe.ask("CONFIG", "GET", "appendfsync")
            self._syncs = b"no" not in found
        except StoreRefused:
            self._syncs = None  # managed services forbid CONFIG

    async def _is_synced(self) -> bool:
        """False: not in time. The next attempt waits for the same writes."""
        if self._has_waitaof:
            try:
                return await self._wait_for_sync()
            except StoreRefused as fault:
                if "unknown command" not in str(fault):
                    raise
                self._has_waitaof = False
        return await self._wait_for_everysec()

    async def _wait_for_sync(self) -> bool:
        # WAITAOF covers what its own connection wrote last, so write something first; once, or a
        # disk that takes longer than an attempt would never be done.
        pipe = self._pipe
        written = []
        if self._barrier != pipe.client_id:
            written.append(pipe.call(*_WRITE_BARRIER))
        waited = pipe.call("WAITAOF", 1, 0, SYNC_MS)  # in the same turn: on the same connection
        client_id = pipe.client_id
        *_, (synced, _) = await within(REPLY_TIMEOUT, asyncio.gather(*written, waited))
        self._barrier = client_id
        return bool(synced)

    async def _wait_for_everysec(self) -> bool:
        await asyncio.sleep(SYNCED_AFTER_S)
        if not await self._is_syncing():
            return True
        # It may have begun before our writes: then the next one is theirs.
        return await self._until_idle() and await self._until_idle(SYNCED_AFTER_S)

    async def _until_idle(self, after_s: float = 0.0) -> bool:
        await asyncio.sleep(after_s)
        for _ in range(round(SYNC_MS / 1000 / LOOK_AGAIN_S)):
            if not await self._is_syncing():
                return True
            await asyncio.sleep(LOOK_AGAIN_S)
        return False

    async def _is_syncing(self) -> bool:
        return b"aof_pending_bio_fsync:0" not in await self._pipe.ask("INFO", "persistence")

    async def _never_syncs(self) -> bool:
        """Does a server that did not sync in time ever sync?"""
        await self._ask_policy()
        if self._syncs is None:
            self._idle_looks = 0 if await self._is_syncing() else self._idle_looks + 1
            if self._idle_looks >= IDLE_LOOKS:
                self._syncs = False
        return self._syncs is False
