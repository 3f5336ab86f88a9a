"""One worker process: `python -m moldau.broker.worker`, started by the supervisor.

process.py describes how it talks to the supervisor. When the supervisor is gone the worker exits
too. SIGTERM drains: requests that are being served are answered before the worker exits.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from pathlib import Path

from moldau.broker.assembly import Parts, assemble, background, follow_changes
from moldau.broker.errors import StoreFault
from moldau.broker.net import descriptors
from moldau.broker.process import BootFailure, collect_seldom, run, say_ready, watch_parent
from moldau.broker.settings.processes import WorkerSettings
from moldau.broker.settings.static_config import static_config
from moldau.broker.store.store import Store, StoreFiles, reached
from moldau.broker.store.topics import Change

logger = logging.getLogger("moldau.worker")

DRAIN_S = 8.0


class Worker:
    """startup, main_loop, shutdown: the life of a worker."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.settings = settings
        self._stop = asyncio.Event()
        self._parent_gone = False

    # --- startup ---

    async def startup(self) -> None:
        settings, store = self.settings, await self._open_store()
        await store.topics.check_format()
        changes_at = await store.topics.last_change()
        cluster_id = await store.topics.cluster_id()
        contents = await store.topics.contents_id()
        static = static_config(settings, store.label, descriptors.for_clients())
        self._parts = parts = assemble(settings, store, static, cluster_id, contents)
        if parts.lease is not None:
            await parts.lease.begin()
        await self._load(parts)
        self._watcher = follow_changes(parts, changes_at)
        await self._listen(parts)
        self._background = [asyncio.ensure_future(each) for each in background(parts)]
        self._background.append(asyncio.ensure_future(self._watch_parent()))

    async def _open_store(self) -> Store:
        settings = self.settings
        files = StoreFiles(*map(Path, settings.store_files)) if settings.store_files else None
        try:
            return await reached(
                lambda: Store(settings.redis_url, settings.index, settings.workers, files)
            )
        except StoreFault as fault:
            raise BootFailure(f"the store cannot be reached: {fault}") from None

    async def _load(self, parts: Parts) -> None:
        if self.settings.workers > 1:  # before anything is loaded: see store/change_acks.py
            change = Change("worker", worker=self.settings.index)
            await parts.broker.store.topics.announce(change)
        await parts.broker.load_config()
        await parts.tables.load()
        await parts.change_feed.load_logs()
        if self.settings.index == 0:
            await parts.broker.topics.finish_deletions()

    async def _listen(self, parts: Parts) -> None:
        limiter = parts.broker.limiter
        limiter.counts.most = descriptors.for_clients()
        await parts.listening.begin(
            self.settings,
            parts.connections.make,
            refuses=limiter.refuses,
            on_refused=limiter.no_descriptor,
        )

    # --- main loop ---

    async def main_loop(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        say_ready()
        self._parts.loop_lag.start()
        logger.info("worker %d serves on port %d", self.settings.index, self.settings.port)
        collect_seldom()
        await self._stop.wait()

    async def _watch_parent(self) -> None:
        """Standard input ends when the supervisor does."""
        ended = asyncio.Event()
        watch_parent(ended.set)
        await ended.wait()
        logger.error("the supervisor is gone, exiting")
        self._parent_gone = True
        self._stop.set()

    # --- shutdown ---

    async def shutdown(self) -> None:
        """Accept no connection, answer parked requests, finish appends. Without its supervisor a
        worker does not wait for the store."""
        parts, is_orphaned = self._parts, self._parent_gone
        broker, events = parts.broker, parts.group_events
        groups = broker.group_coordinator
        parts.loop_lag.stop()
        parts.listening.close()
        for task in self._background:
            task.cancel()
        for parked in list(broker.parked):
            parked.finish()
        if events is not None:
            events.note_commits()
        if not is_orphaned:
            await groups.slots.written(DRAIN_S / 4)
        groups.slots.give_up()
        if not is_orphaned:
            if events is not None:
                await events.close(DRAIN_S / 8)
            await broker.audit.close(DRAIN_S / 8)
        parts.connections.drain()
        await broker.logs.close(1.0 if is_orphaned else DRAIN_S / 2)
        await parts.connections.closed(DRAIN_S / 4)
        await parts.transactions.close_slots()
        parts.transactions.close()
        parts.logins.close()
        broker.tokens.close()
        await self._watcher.close()
        await asyncio.gather(*self._background, return_exceptions=True)
        broker.store.close()


if __name__ == "__main__":
    run("worker", WorkerSettings, Worker)
