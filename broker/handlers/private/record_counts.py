"""RECORD_COUNTS: the leader counts how many records groups are behind."""

from __future__ import annotations

import time

from moldau.broker.errors import MoldauError
from moldau.broker.log.counting import CountBudget
from moldau.broker.log.log import Log
from moldau.broker.log.logs import Logs
from moldau.broker.private.table import MAX_BEHIND, UNKNOWN, Behind, Counts
from moldau.broker.topics.topics import Topics

MAX_RECORDS = 50_000  # counted one by one for a request
COUNTING_S = 0.4


class RecordCounts:
    def __init__(self, topics: Topics, logs: Logs) -> None:
        self._topics = topics
        self._logs = logs

    async def answer(self, wanted: list[Behind]) -> Counts:
        behind = wanted[:MAX_BEHIND]
        budget = CountBudget(MAX_RECORDS, time.monotonic() + COUNTING_S)
        by_place: dict[tuple[str, int], list[int]] = {}
        for number, (topic, partition, _, _) in enumerate(behind):
            by_place.setdefault((topic, partition), []).append(number)
        counts: Counts = [UNKNOWN] * len(behind)
        for place, numbers in by_place.items():
            for number, found in zip(
                numbers,
                await self._count(place, [behind[number] for number in numbers], budget),
                strict=True,
            ):
                counts[number] = found
        return counts

    async def _count(
        self, place: tuple[str, int], wanted: list[Behind], budget: CountBudget
    ) -> Counts:
        log = self._log(*place)
        if log is None:
            return [UNKNOWN] * len(wanted)
        try:
            return await log.count_from([(group, offset) for _, _, group, offset in wanted], budget)
        except MoldauError:  # the topic was deleted meanwhile, or the store does not answer
            return [None] * len(wanted)

    def _log(self, name: str, partition: int) -> Log | None:
        topic = self._topics.get(name)
        if topic is None or not 0 <= partition < topic.partitions:
            return None
        log = self._logs.log_for(topic, partition)
        return None if log.is_gone else log
