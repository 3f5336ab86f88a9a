"""Background work on the logs a worker leads: retention and compaction.

Two loops, so that a long pass over one log does not keep others past their retention. Only one of
them works on a log at a time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from moldau.broker.errors import MoldauError, StoreFault
from moldau.broker.log.keeping.cleaning_pass import Plan
from moldau.broker.log.keeping.compaction import Compaction
from moldau.broker.log.log import Log
from moldau.broker.log.logs import Logs
from moldau.broker.log.partition import PartitionLog
from moldau.broker.topics.topics import Topic, Topics

logger = logging.getLogger("moldau.maintenance")

T = TypeVar("T")

# Intervals can be changed while running: a change takes effect this soon.
RECHECK_S = 1.0
SHORTEST_PAUSE_S = 0.05


class Maintenance:
    def __init__(self, topics: Topics, logs: Logs, compaction: Compaction) -> None:
        self._topics = topics
        self._logs = logs
        self._compaction = compaction
        self._compacted: PartitionLog | None = None

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as loops:
            loops.create_task(self._retain_forever())
            loops.create_task(self._compact_forever())

    async def _retain_forever(self) -> None:
        while True:
            began = time.monotonic()
            await self._pause(began, "log.retention.check.interval.ms")
            try:
                await self.retain()
            except StoreFault as fault:
                logger.warning("retention waits for the store: %s", fault)

    async def _compact_forever(self) -> None:
        while True:
            began = time.monotonic()
            try:
                if self._topics.broker.get_bool("log.cleaner.enable"):
                    await self.compact()
            except StoreFault as fault:
                logger.warning("compaction waits for the store: %s", fault)
            # Also after a round that cleaned something: entries are small compared to Kafka's
            # segments, so there is nearly always a little to clean.
            await self._pause(began, "log.cleaner.backoff.ms")

    async def _pause(self, began: float, key: str) -> None:
        """Sleep until the configured interval since `began` has passed."""
        await asyncio.sleep(SHORTEST_PAUSE_S)
        while (left := began + self._topics.broker.get_int(key) / 1000 - time.monotonic()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(min(left, RECHECK_S))

    async def retain(self) -> None:
        """Apply retention to every partition this worker leads, and free what was left over."""
        for topic, partition in self._led():
            log = self._logs.log_for(topic, partition)
            # Not while it is compacted: moving the log start would void the pass.
            if log is not self._compacted:
                await _isolated(log, log.enforce_retention(topic.config, _now_ms()))

    async def compact(self) -> None:
        """A pass over each log that is due for one, the dirtiest first."""
        due: list[tuple[float, Topic, PartitionLog]] = []
        for topic, partition in self._led():
            if not topic.config.compact or topic.native:
                continue
            log = self._logs.partition_log(topic, partition)
            plan = await _isolated(log, self._plan(log, topic))
            if plan is not None:
                due.append((plan.ratio, topic, log))
        for _, topic, log in sorted(due, key=lambda one: one[0], reverse=True):
            self._compacted = log
            try:
                await _isolated(log, self._compact(log, topic))
            finally:
                self._compacted = None

    async def _plan(self, log: PartitionLog, topic: Topic) -> Plan | None:
        await self._compaction.tidy(log.reader)
        await log.loaded()
        return await self._compaction.plan(log.reader, topic.config, _now_ms())

    async def _compact(self, log: PartitionLog, topic: Topic) -> None:
        await log.loaded()
        await self._compaction.compact(log, topic.config, _now_ms())

    def _led(self) -> list[tuple[Topic, int]]:
        return [
            (topic, partition)
            for topic in self._topics.all()
            for partition in range(topic.partitions)
            if self._logs.leads(topic.name, partition)
        ]


async def _isolated(log: Log, work: Coroutine[Any, Any, T]) -> T | None:
    """What goes wrong with one log must not keep the others waiting, unless the store failed."""
    try:
        return await work
    except StoreFault:
        raise
    except MoldauError as fault:
        logger.info("%r: %s", log, fault)  # deleted meanwhile
    except Exception:
        logger.exception("maintenance of %r failed", log)
    return None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
