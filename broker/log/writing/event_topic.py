"""An internal topic that the broker writes: JSON documents, off the request path.

A document is put into a list, and whoever owns the topic has it flushed, one append at a time. The
list is bounded: what does not fit while the store is slow is dropped and counted. No request waits
for any of it; documents are allowed to get lost.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec

from moldau.broker.errors import ErrorCode, KafkaError, MoldauError
from moldau.broker.log.callbacks import Completion, await_callback
from moldau.broker.log.logs import Logs
from moldau.broker.log.writing.append import Append
from moldau.broker.topics.topics import Topics
from moldau.broker.wire.batch import read_header
from moldau.broker.wire.records import Record, build_batch

logger = logging.getLogger("moldau.log")

MAX_QUEUED = 10_000
MAX_BATCH_BYTES = 512 << 10

_encode = msgspec.json.Encoder().encode


class EventTopic:
    def __init__(
        self, name: str, topics: Topics, logs: Logs, worker: int, created_with: dict[str, str]
    ) -> None:
        self.name = name
        self._topics = topics
        self._logs = logs
        self._worker = worker
        self._created_with = created_with
        self.queue: list[Record] = []
        self._dropped = 0
        self._is_failing = False

    def put(self, key: str | None, document: dict[str, Any], now_ms: int) -> bool:
        """Queue a document. False: it was dropped."""
        if len(self.queue) >= MAX_QUEUED:
            self._dropped += 1
            return False
        encoded = None if key is None else key.encode()
        self.queue.append(Record(0, now_ms, encoded, _encode(document)))
        return True

    async def flush(self, now_ms: int) -> None:
        """Append the queued documents, in one try. Those that cannot be written stay queued."""
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            logger.warning("%d events for %s were dropped: too many", dropped, self.name)
            facts = {"event": "events_dropped", "worker": self._worker, "count": dropped}
            self.queue.append(Record(0, now_ms, None, _encode(facts | {"time_ms": now_ms})))
        size = count = 0
        for record in self.queue:
            size += len(record.value or b"") + len(record.key or b"") + 20
            if count and size > MAX_BATCH_BYTES:
                break
            count += 1
        if not count:
            return
        try:
            await self.append(self.queue[:count])
        except MoldauError as fault:
            if not self._is_failing:
                logger.warning("%s cannot be written at the moment: %s", self.name, fault)
            self._is_failing = True
        else:
            del self.queue[:count]
            self._is_failing = False

    async def append(self, records: list[Record]) -> None:
        topic = await self._topics.find(self.name)
        if topic is None:
            try:
                await self._topics.create(self.name, 1, self._created_with)
            except KafkaError as refusal:
                if refusal.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
            topic = await self._topics.find(self.name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{self.name} is gone")
        if topic.native:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG, f"{self.name} must not be moldau.storage=native"
            )
        numbered = [Record(at, r.timestamp, r.key, r.value) for at, r in enumerate(records)]
        batch = build_batch(numbered, base_offset=0, last_offset=len(numbered) - 1)
        log = self._logs.partition_log(topic, 0)

        def begin(done: Completion) -> None:
            log.append(_EventAppend(batch, done))

        await await_callback(begin)

    async def close(self, seconds: float, now_ms: int) -> None:
        """Write the last documents when the worker stops."""
        try:
            async with asyncio.timeout(seconds):
                while self.queue and not self._is_failing:
                    await self.flush(now_ms)
        except TimeoutError:
            lost = len(self.queue)
            logger.warning("%d events for %s are lost: the store is too slow", lost, self.name)


class _EventAppend(Append):
    __slots__ = ("_completion",)

    def __init__(self, batch: bytearray, completion: Completion) -> None:
        super().__init__(batch, read_header(batch))
        self._completion = completion

    def done(self, error: BaseException | None, base_offset: int, timestamp: int) -> None:
        self._completion(error)
