"""What a worker does to the logs it leads while nobody asks: retention now, cleaning in time."""

from __future__ import annotations

import asyncio
import logging
import time

from broker.errors import MoldauError, StoreFault
from broker.log.logs import Logs
from broker.log.retention import Retention
from broker.log.topics import Topics

log = logging.getLogger("moldau.retention")


class Housekeeping:
    def __init__(self, topics: Topics, logs: Logs, retention: Retention) -> None:
        self._topics = topics
        self._logs = logs
        self._retention = retention

    async def run(self) -> None:
        """Until cancelled; the interval is read anew each time, so that it can be changed."""
        while True:
            interval = self._topics.broker.get_int("log.retention.check.interval.ms") / 1000
            await asyncio.sleep(interval)
            try:
                await self.retain(time.time_ns() // 1_000_000)
            except StoreFault as fault:
                log.warning("retention waits for the store: %s", fault)

    async def retain(self, now_ms: int) -> None:
        """Apply retention to every partition this worker leads."""
        for topic in self._topics.all():
            if not topic.config.delete:
                continue
            for partition in range(topic.partitions):
                if not self._logs.leads(topic.name, partition):
                    continue
                found = self._logs.get(topic, partition)
                try:
                    await found.current()
                    await self._retention.enforce(found, topic.config, now_ms)
                except StoreFault:
                    raise
                except MoldauError as fault:
                    log.info("retention of %r: %s", found, fault)  # deleted meanwhile
