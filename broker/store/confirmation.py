"""Confirmed writes: what the store has acknowledged, and will not lose when it fails.

With replicas: every one that is online has it (WAIT). The embedded store: its append-only file was
forced to disk, by this process (the kernel has what the store replied to). Another server with an
append-only file: WAITAOF, or, before Redis 7.2, the time `appendfsync everysec` takes. A server
that keeps no file, or never syncs it, promises nothing, and there is nothing to wait for.

One confirmation covers everything that was acknowledged before it begins, whoever wrote it.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from broker.errors import StoreRefused, StoreTimeout
from broker.store import keys
from broker.store.history import StoreHistory
from broker.store.pipe import Pipe

ATTEMPTS = 10
WAIT_MS = 1000
SYNCED_AFTER_S = 1.05  # `everysec` has begun to sync what was written before
LOOK_AGAIN_S = 0.05
LONGEST_SYNC_MS = 5000


class Confirmation:
    """`append_only_files`: the directory of the embedded store's files, if it is that one."""

    def __init__(
        self, history: StoreHistory, pipe: Pipe, append_only_files: Path | None = None
    ) -> None:
        self._history = history
        self._pipe = pipe  # WAIT blocks its connection
        self._files = append_only_files
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None
        self._has_waitaof = True
        self._syncs = True  # its append-only file, as far as we know
        self._syncs_at = b""  # the token that is known of

    @property
    def is_slow(self) -> bool:
        """May it take a second?"""
        facts = self._history.facts
        return self._files is None and facts.aof_enabled and self._syncs and not facts.online

    async def confirm(self) -> None:
        """Wait until everything that was acknowledged so far is safe. Raises StoreFault."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._round(self._running))
        await asyncio.shield(self._next)

    async def _round(self, previous: asyncio.Task[None] | None) -> None:
        if previous is not None:
            await asyncio.wait([previous])
        self._running, self._next = self._next, None  # from here on it is too late to join
        for _ in range(ATTEMPTS):
            if await self._try():
                return
            await self._history.refresh(self._pipe)
        raise StoreTimeout("the store's replicas do not confirm what was written")

    async def _try(self) -> bool:
        facts = self._history.facts
        if replicas := len(facts.online):
            # WAIT covers what its own connection wrote last, so write something first.
            await self._pipe.ask("SET", keys.BARRIER, 1)
            reached: int = await self._pipe.ask("WAIT", replicas, WAIT_MS)
            return reached >= replicas
        if self._files is not None:
            await asyncio.to_thread(_sync, self._files)
        elif facts.aof_enabled and await self._is_synced_at_all():
            await self._wait_for_sync()
        return True

    async def _is_synced_at_all(self) -> bool:
        token = self._history.token
        if self._syncs_at != token:
            try:
                found: list[bytes] = await self._pipe.ask("CONFIG", "GET", "appendfsync")
                self._syncs = b"no" not in found
            except StoreRefused:
                self._syncs = True  # no permission to ask: WAITAOF will show it
            self._syncs_at = token
        return self._syncs

    async def _wait_for_sync(self) -> None:
        await self._pipe.ask("SET", keys.BARRIER, 1)
        if self._has_waitaof:
            try:
                synced, _ = await self._pipe.ask("WAITAOF", 1, 0, LONGEST_SYNC_MS)
                self._syncs = bool(synced)
            except StoreRefused as fault:
                if "unknown command" not in str(fault):
                    raise
                self._has_waitaof = False
            else:
                return
        await asyncio.sleep(SYNCED_AFTER_S)
        while b"aof_pending_bio_fsync:0" not in await self._pipe.ask("INFO", "persistence"):  # noqa: ASYNC110
            await asyncio.sleep(LOOK_AGAIN_S)


def _sync(directory: Path) -> None:
    for path in directory.glob("*.incr.aof"):
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue  # rewritten meanwhile: the server has synced the new one first
        try:
            os.fdatasync(descriptor) if hasattr(os, "fdatasync") else os.fsync(descriptor)
        finally:
            os.close(descriptor)
