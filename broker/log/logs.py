"""The logs of one worker: made when first used, told of what other workers do."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any

from broker.errors import StoreFault, StoreFull
from broker.log.native.log import NativeLog
from broker.log.partition import PartitionLog
from broker.log.tail import TailCache
from broker.log.topics import Topic, Topics
from broker.placement import leader_of
from broker.store import keys, resp
from broker.store.native import RawEntries
from broker.store.store import Store
from broker.store.streams import Entry
from broker.store.watch import Watcher

log = logging.getLogger("moldau.log")

AnyLog = PartitionLog | NativeLog

TAIL_LINGER = 60.0  # seconds a log stays tailed after its last waiting reader
FULL_LOG_EVERY = 5.0


class Logs:
    """Finds a partition's log, and runs what logs start."""

    def __init__(
        self, store: Store, topics: Topics, *, worker: int, workers: int,
        cache_bytes: int, snapshot_entries: int,
    ) -> None:  # fmt: skip
        self.streams = store.streams
        self.native = store.native
        self.snapshot_entries = snapshot_entries
        self.store_full_count = 0
        self._topics = topics
        self._worker = worker
        self._workers = workers
        self.cache = TailCache(cache_bytes)
        self._logs: dict[bytes, PartitionLog] = {}
        self._natives: dict[bytes, list[NativeLog]] = {}  # one stream may be several topics
        self._by_place: dict[tuple[bytes, int], AnyLog] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._last_full_line = 0.0
        self.watcher: Watcher | None = None
        topics.on_removed.append(self._topic_removed)
        store.reads.on_up = self.look_everywhere  # a look that was under way has failed

    # --- finding ---

    def log_for(self, topic: Topic, partition: int) -> AnyLog:
        """The log of a partition that exists."""
        place = (topic.topic_id, partition)
        found = self._by_place.get(place)
        if found is None and topic.native:
            key, base = topic.key(partition), topic.base(partition)
            native = NativeLog(self, topic.name, partition, key, base, lambda: topic.config)
            self._natives.setdefault(key, []).append(native)
            found = self._by_place[place] = native
        elif found is None:
            key = topic.key(partition)
            leader = leader_of(topic.name, partition, self._workers)
            wake = None if leader == self._worker else resp.wake(keys.wake(leader), key)
            made = PartitionLog(self, topic.name, partition, key, self.cache.tail(), wake)
            found = self._by_place[place] = self._logs[key] = made
        return found

    def leads(self, topic: str, partition: int) -> bool:
        return leader_of(topic, partition, self._workers) == self._worker

    def all(self) -> list[AnyLog]:
        return list(self._by_place.values())

    def _topic_removed(self, topic: Topic) -> None:
        for partition in range(topic.partitions):
            found = self._by_place.pop((topic.topic_id, partition), None)
            if found is not None:
                if isinstance(found, NativeLog):
                    self._natives[found.key].remove(found)
                else:
                    del self._logs[found.key]
                found.gone()
                if self.watcher is not None and not self._natives.get(found.key):
                    self.watcher.untail(found.key)

    # --- hearing of others ---

    def is_watched(self, found: AnyLog) -> bool:
        """Will we hear of what others append to it?"""
        if isinstance(found, NativeLog):
            # Of a stream that is several topics only those who know of what was before.
            tailed = self.watcher is not None and self.watcher.tails(found.key)
            return tailed and found.is_followed
        if self._workers == 1 or self.leads(found.topic, found.partition):
            return True
        return self.watcher is not None and self.watcher.tails(found.key)

    def watch(self, found: AnyLog) -> None:
        """Hear of what others append: to a log that this worker does not lead, to any stream."""
        if self.watcher is not None and not self.is_watched(found):
            if isinstance(found, NativeLog):
                found.is_followed = True
                if self.watcher.tails(found.key):
                    return
                self.watcher.tail_native(found.key, bytes(found.last_id))
            else:
                self.watcher.tail(found.key, found.end)
            self._arm_untail(found)

    def _arm_untail(self, found: AnyLog) -> None:
        def untail() -> None:
            if self.watcher is None:
                return
            natives = self._natives.get(found.key, ()) if isinstance(found, NativeLog) else ()
            if found.waiters or any(native.waiters for native in natives):
                self._arm_untail(found)
                return
            self.watcher.untail(found.key)
            for native in natives:
                native.is_followed = False

        asyncio.get_running_loop().call_later(TAIL_LINGER, untail)

    def woken(self, key: bytes) -> None:
        found = self._logs.get(key)
        if found is not None:
            found.look()

    def received(self, key: bytes, entries: list[Entry]) -> None:
        found = self._logs.get(key)
        if found is not None:
            found.received(entries)

    def received_native(self, key: bytes, entries: RawEntries) -> None:
        for found in self._natives.get(key, ()):
            found.received(entries)

    def look_everywhere(self) -> None:
        """Wake-ups may have been missed: every log looks for itself.

        Those nobody waits on too: the next reader takes their end for the log's.
        """
        for found in self._by_place.values():
            found.look()

    # --- what logs need of their worker (LogHost) ---

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error("background work failed", exc_info=fault)

    def producers_kept_ms(self) -> int:
        return self._topics.broker.get_int("producer.id.expiration.ms")

    def store_full(self, fault: StoreFull) -> None:
        """Loud, but not once per request."""
        self.store_full_count += 1
        now = time.monotonic()
        if now - self._last_full_line >= FULL_LOG_EVERY:
            self._last_full_line = now
            log.critical(
                "THE STORE IS FULL, producers are refused (%d so far): raise its maxmemory, "
                "lower retention or delete topics: %s",
                self.store_full_count,
                fault,
            )

    async def close(self, seconds: float) -> None:
        """Let appends finish, keep snapshots; whoever still waits is cut off."""
        deadline = time.monotonic() + seconds
        busy = [asyncio.ensure_future(found.current()) for found in self.all() if found.is_busy]
        if busy:
            await asyncio.wait(busy, timeout=seconds)
        try:
            async with asyncio.timeout(max(deadline - time.monotonic(), 0.1)):
                for found in self._logs.values():
                    if found.is_loaded and found.has_news:
                        await found.save_snapshot()
        except (TimeoutError, StoreFault) as fault:
            log.warning("not every snapshot was saved: %s", fault)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
