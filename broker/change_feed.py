"""Applies the changes that other workers announce, so that memory agrees with the store.

Changes are announced in a stream, which a blocking read follows (store/watch.py). For each of them
the changed data is read from the store, and the change is acknowledged to the worker that made it.
After a lost connection, or when the store was emptied or exchanged, everything is loaded again.
"""

from __future__ import annotations

import asyncio
import logging

from moldau.broker.access.cached_tables import CachedTables
from moldau.broker.broker import Broker
from moldau.broker.errors import StoreFault
from moldau.broker.handlers.details import loggers
from moldau.broker.store.topics import Change

logger = logging.getLogger("moldau.worker")

STORE_CHECK_SECONDS = 1.0
RELOAD_SECONDS = 0.2  # between attempts


class ChangeFeed:
    def __init__(self, broker: Broker, tables: CachedTables, contents: str) -> None:
        """`contents`: the identity of the data set that the worker started with."""
        self._broker = broker
        self._store = broker.store
        self._topics = broker.topics
        self._logs = broker.logs
        self._groups = broker.group_coordinator
        self._tables = tables
        self._contents = contents

    # --- one change ---

    def changed(self, change: Change) -> None:
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
        elif change.kind in self._tables:
            await self._tables.refresh(change.kind, change.name)
        elif change.kind == "topic":
            await self._topics.refresh(change.name)
        elif change.kind == loggers.CHANGE:
            loggers.apply(self._broker, change)
        elif change.kind == "members":
            await self._logs.group_assignments.refresh(change.name)
        else:
            topic = self._topics.get(change.name)
            if topic is not None and change.partition < topic.partitions:
                if change.kind == "epoch":
                    await self._logs.leader_epochs.refresh(topic.key(change.partition))
                await self._logs.log_for(topic, change.partition).load_start()

    # --- everything ---

    def missed_changes(self) -> None:
        self._logs.spawn(self._reload())

    def store_changed(self) -> None:
        """The store may have lost what was written last."""
        self._logs.store_changed()
        self._logs.spawn(self._reload())
        self._logs.spawn(self._groups.slots.store_changed())

    async def watch_contents(self) -> None:
        """Notice a FLUSHALL, which sends no notification: deleted topics would still be served from
        memory."""
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
                await self._tables.load()
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
        """Load topics, and what the store knows of their logs. Raises StoreFault."""
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
        self._logs.spawn(self._groups.slots.store_changed())
        if self._broker.acls is not None:
            self._broker.acls.store_emptied()
        logger.critical(
            "THE STORE WAS EMPTIED OR EXCHANGED (FLUSHALL, FLUSHDB, another data set?): what it "
            "holds now is served; of %d topics those that are missing from it are gone, with "
            "their records and offsets",
            before,
        )
