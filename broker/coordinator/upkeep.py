"""What a worker does for its groups and transactional ids beside serving requests: it loads them,
expires offsets and ids, and forgets the offsets of deleted topics."""

from __future__ import annotations

import asyncio
import logging

from moldau.broker.coordinator.groups.coordinator import GroupCoordinator
from moldau.broker.coordinator.runtime.runtime import Spawn
from moldau.broker.coordinator.transactions.coordinator import TransactionCoordinator
from moldau.broker.errors import StoreFault
from moldau.broker.topics.topics import Topic, Topics

logger = logging.getLogger("moldau.worker")

EVERY_S = 600.0


class GroupUpkeep:
    def __init__(
        self,
        groups: GroupCoordinator,
        transactions: TransactionCoordinator,
        topics: Topics,
        spawn: Spawn,
    ) -> None:
        self._groups = groups
        self._transactions = transactions
        self._topics = topics
        self._spawn = spawn

    async def run(self) -> None:
        """Load groups and transactional ids, then look after them until cancelled."""
        await self._groups.slots.load()
        while True:
            try:
                await self._forget_missing_topics()
                await self._groups.offsets.expire()
                self._transactions.expire()
            except StoreFault as fault:
                logger.warning("expiry of offsets waits for the store: %s", fault)
            await asyncio.sleep(EVERY_S)

    async def _forget_missing_topics(self) -> None:
        """A crash may have interrupted the deletion of a topic."""
        for name in self._groups.offsets.topics() - {known.name for known in self._topics.all()}:
            if await self._topics.find(name) is None:
                await self._groups.offsets.topic_deleted(name)

    def topic_removed(self, topic: Topic) -> None:
        self._spawn(self._forget_offsets(topic.name))

    async def _forget_offsets(self, topic: str) -> None:
        try:
            await self._groups.offsets.topic_deleted(topic)
        except StoreFault as fault:
            logger.warning("offsets of the deleted topic %s wait for the store: %s", topic, fault)
