"""What a worker does to the logs it leads while nobody asks: retention and compaction.

Two loops, so that a long pass over one log does not keep others past their retention. A log is
in the hands of one of them at a time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from broker.errors import MoldauError, StoreFault
from broker.log.compaction import Compaction
from broker.log.logs import Logs
from broker.log.native.log import NativeLog
from broker.log.native.maintenance import enforce
from broker.log.partition import PartitionLog
from broker.log.retention import Retention
from broker.log.topics import Topic, Topics
from broker.settings.kafka import TopicConfig

log = logging.getLogger("moldau.housekeeping")

T = TypeVar("T")
Task = Callable[[PartitionLog, TopicConfig, int], Coroutine[Any, Any, T]]

# Intervals can be changed while running: this soon a change is heeded, whatever was waited for.
HEED_S = 1.0
SHORTEST_PAUSE_S = 0.05


class Maintenance:
    def __init__(
        self, topics: Topics, logs: Logs, retention: Retention, compaction: Compaction
    ) -> None:
        self._topics = topics
        self._logs = logs
        self._retention = retention
        self._compaction = compaction
        self._compacted: PartitionLog | None = None

    async def run(self) -> None:
        """Until cancelled."""
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
                log.warning("retention waits for the store: %s", fault)

    async def _compact_forever(self) -> None:
        while True:
            began = time.monotonic()
            try:
                if self._topics.broker.get_bool("log.cleaner.enable"):
                    await self.compact()
            except StoreFault as fault:
                log.warning("compaction waits for the store: %s", fault)
            # After a round that found something too: entries are small against Kafka's segments,
            # so there is nearly always something, and little of it.
            await self._pause(began, "log.cleaner.backoff.ms")

    async def _pause(self, began: float, key: str) -> None:
        """Until it is as long since `began` as the configuration says."""
        await asyncio.sleep(SHORTEST_PAUSE_S)
        while (left := began + self._topics.broker.get_int(key) / 1000 - time.monotonic()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(min(left, HEED_S))

    async def retain(self) -> None:
        """Apply retention to every partition this worker leads, and free what was left over."""
        await self._retain_native()
        for topic, found in self._led(lambda topic: not topic.native):
            # One that is being compacted comes next time: moving its start would spoil the pass.
            if found is not self._compacted:
                await self._see_to(found, self._retention.enforce, topic)

    async def _retain_native(self) -> None:
        for topic in self._topics.all():
            for partition in range(topic.partitions) if topic.native else ():
                found = self._logs.log_for(topic, partition)
                if isinstance(found, NativeLog) and self._logs.leads(topic.name, partition):
                    await self._see_to_native(found, topic)

    async def _see_to_native(self, found: NativeLog, topic: Topic) -> None:
        try:
            kept_ms = self._logs.producers_kept_ms()
            await enforce(self._logs.native, found, topic.config, kept_ms)
        except StoreFault as fault:
            if "WRONGTYPE" not in str(fault):
                raise
            log.warning("%r: %s", found, fault)  # somebody's key is no stream any more
        except MoldauError as fault:
            log.info("%r: %s", found, fault)  # deleted meanwhile
        except Exception:
            log.exception("housekeeping of %r failed", found)

    async def compact(self) -> None:
        """A pass over each log that is due for one, the dirtiest first."""
        due: list[tuple[float, Topic, PartitionLog]] = []
        for topic, found in self._led(lambda topic: topic.config.compact):
            await self._compaction.tidy(found)
            plan = await self._see_to(found, self._compaction.plan, topic)
            if plan is not None:
                due.append((plan.ratio, topic, found))
        for _, topic, found in sorted(due, key=lambda one: one[0], reverse=True):
            self._compacted = found
            try:
                await self._see_to(found, self._compaction.compact, topic)
            finally:
                self._compacted = None

    async def _see_to(self, found: PartitionLog, task: Task[T], topic: Topic) -> T | None:
        """Do it to one log. What goes wrong with it must not keep the others waiting."""
        try:
            if not found.is_loaded:
                await found.current()
            return await task(found, topic.config, time.time_ns() // 1_000_000)
        except StoreFault:
            raise
        except MoldauError as fault:
            log.info("%r: %s", found, fault)  # deleted meanwhile
        except Exception:
            log.exception("housekeeping of %r failed", found)
        return None

    def _led(self, wanted: Callable[[Topic], bool]) -> list[tuple[Topic, PartitionLog]]:
        return [
            (topic, found)
            for topic in self._topics.all()
            if wanted(topic)
            for partition in range(topic.partitions)
            if self._logs.leads(topic.name, partition)
            and isinstance(found := self._logs.log_for(topic, partition), PartitionLog)
        ]
