"""Keeps what a worker holds in memory in step with the store.

Other workers announce their changes in a stream, which a blocking read follows; the change is
read from the store, and acknowledged to the worker that made it. After a lost connection, or when
the store was emptied or exchanged, everything is loaded again.
"""

from __future__ import annotations

import asyncio
import logging

from moldau.broker.access.kept import KeptByKind
from moldau.broker.errors import StoreFault
from moldau.broker.handlers import broker_loggers
from moldau.broker.handlers.context import Broker
from moldau.broker.store.topics import Change
from moldau.broker.store.watch import Watcher

logger = logging.getLogger("moldau.worker")

STORE_CHECK_SECONDS = 1.0
RELOAD_SECONDS = 0.2  # between tries


class InStep:
    def __init__(self, broker: Broker, kept: KeptByKind, contents: str) -> None:
        """`contents`: the identity of the data set that the worker started with."""
        self._broker = broker
        self._store = broker.store
        self._topics = broker.topics
        self._logs = broker.logs
        self._groups = broker.group_coordinator
        self._kept = kept
        self._contents = contents

    def follow(self, changes_at: bytes) -> Watcher:
        """Apply every change behind `changes_at`: the last one when loading began."""
        store, logs = self._store, self._logs
        store.history.on_changed = self._history_changed
        watcher = Watcher(
            store.blocking,
            store.control,
            self._broker.settings.index,
            on_change=self._changed,
            on_wake=logs.woken,
            on_applied=store.topics.unapplied.acknowledged,
            on_entries=logs.received,
            on_native=logs.received,
            on_reset=self._missed_changes,
        )
        logs.watcher = watcher
        watcher.start(changes_at)
        return watcher

    # --- changes ---

    def _changed(self, change: Change) -> None:
        self._store.topics.read_in_order(change)
        if change.kind != "worker":
            self._logs.spawn(self._apply(change))

    async def _apply(self, change: Change) -> None:
        try:
            await self._read(change)
        except StoreFault as fault:
            logger.warning("a change could not be read, reloading everything: %s", fault)
            await self._reload()
        try:
            await self._store.topics.acknowledge(change)
        except StoreFault as fault:
            logger.warning("a change could not be acknowledged: %s", fault)

    async def _read(self, change: Change) -> None:
        if change.kind == "config":
            await self._broker.load_config()
        elif change.kind in self._kept:
            await self._kept.refresh(change.kind, change.name)
        elif change.kind == "topic":
            await self._topics.refresh(change.name)
        elif change.kind == broker_loggers.CHANGE:
            broker_loggers.apply(self._broker, change)
        elif change.kind == "members":
            await self._logs.group_assignments.refresh(change.name)
        else:
            topic = self._topics.get(change.name)
            if topic is not None and change.partition < topic.partitions:
                if change.kind == "epoch":
                    await self._logs.leader_epochs.refresh(topic.key(change.partition))
                await self._logs.log_for(topic, change.partition).load_start()

    # --- everything again ---

    def _missed_changes(self) -> None:
        self._logs.spawn(self._reload())

    def _history_changed(self) -> None:
        self._logs.history_changed()
        self._logs.spawn(self._reload())
        self._logs.spawn(self._groups.store_lost_history())

    async def watch_contents(self) -> None:
        """A FLUSHALL sends no notification: deleted topics would still be served from memory."""
        while True:
            await asyncio.sleep(STORE_CHECK_SECONDS)
            try:
                is_known = await self._store.topics.has_contents(self._contents)
            except StoreFault:
                continue  # requests that need the store report it
            if not is_known:
                await self._reload()

    async def _reload(self) -> None:
        while True:
            try:
                await self._check_contents()
                await self._broker.load_config()
                await self._kept.load()
                await self.load_logs()
                for found in self._logs.all():
                    await found.load_start()
            except StoreFault as fault:
                logger.warning("waiting for the store: %s", fault)
                await asyncio.sleep(RELOAD_SECONDS)
            else:
                self._logs.look_everywhere()
                return

    async def load_logs(self) -> None:
        """Topics, and what is known of their logs. Raises StoreFault."""
        await self._topics.load()
        await self._logs.leader_epochs.load()
        await self._logs.group_assignments.load()
        self._logs.checked.begin()

    async def _check_contents(self) -> None:
        topics = self._store.topics
        if await topics.has_contents(self._contents):
            return
        before = len(self._topics.all())
        await self._topics.reseed()
        await topics.cluster_id(self._broker.cluster_id)
        self._contents = await topics.contents_id()
        self._logs.spawn(self._groups.store_lost_history())
        if self._broker.acls is not None:
            self._broker.acls.store_emptied()
        logger.critical(
            "THE STORE WAS EMPTIED OR EXCHANGED (FLUSHALL, FLUSHDB, another data set?): what it "
            "holds now is served; of %d topics those that are missing from it are gone, with "
            "their records and offsets",
            before,
        )
