"""Which logs are checked in the store's history, for answers about logs that are not loaded.

A log that may have lost its end is checked when it is loaded (loading.py): it is whole, or goes on
in a new leader epoch. Until then the epoch that is known of it may be an old one. After a start,
and when the store has begun another history, each worker checks the logs it leads in the
background; a request that names topics has theirs checked at once. Afterwards a request costs one
comparison.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Protocol

from moldau.broker.errors import MoldauError, StoreFault
from moldau.broker.log.history import LogHistory
from moldau.broker.log.leader_epochs import LeaderEpochs
from moldau.broker.log.log import Log
from moldau.broker.topics.topics import Topic, Topics

logger = logging.getLogger("moldau.log")

# How long a request waits. What is not checked by then has no leader in its answer, and clients
# ask again.
WITHIN_S = 5.0
ASKED_AT_ONCE = 256  # commands in one write
LOADED_AT_ONCE = 8  # each takes some megabytes of the store's memory and ours
LOOK_AGAIN_S = 0.1  # at logs that other workers lead, or that could not be loaded

Partition = tuple[Topic, int]


class LogFinder(Protocol):
    def log_for(self, topic: Topic, partition: int) -> Log: ...
    def leads(self, topic: str, partition: int) -> bool: ...


class CheckedLogs:
    def __init__(
        self, topics: Topics, logs: LogFinder, history: LogHistory, epochs: LeaderEpochs
    ) -> None:
        self._topics = topics
        self._logs = logs
        self._history = history
        self._epochs = epochs
        self._complete_in: bytes | None = None  # the token of the history all logs are checked in
        self._checked_in = b""  # the same for those in `_checked`
        self._checked: set[bytes] = set()
        self._checking: asyncio.Task[None] | None = None

    @property
    def is_complete(self) -> bool:
        """Is every log checked? New ones are, as they are created in the present history."""
        return self._complete_in == self._history.token

    def has(self, topic: Topic, partition: int) -> bool:
        if self.is_complete or topic.native:  # a native log has no epochs
            return True
        return self._checked_in == self._history.token and topic.key(partition) in self._checked

    # --- everything, in the background ---

    def begin(self) -> None:
        """Check all logs: topics were loaded from the store, whatever they were before."""
        self.close()
        self._complete_in = None
        self._checked.clear()
        self._checking = asyncio.get_running_loop().create_task(self._check_everything())
        self._checking.add_done_callback(_report)

    def close(self) -> None:
        if self._checking is not None:
            self._checking.cancel()

    def _unfinished(self) -> asyncio.Task[None] | None:
        if self._checking is None or self._checking.done():
            return None
        return self._checking

    async def _check_everything(self) -> None:
        while not self.is_complete:
            token = self._history.token
            every = [(topic, at) for topic in self._topics.all() for at in range(topic.partitions)]
            try:
                left = await self._look(every)
            except StoreFault:
                await asyncio.sleep(LOOK_AGAIN_S)
                continue
            if not left and token == self._history.token:
                self._complete_in = token
                self._checked.clear()
                return
            led = [one for one in left if self._logs.leads(one[0].name, one[1])]
            await self._load(led)
            await asyncio.sleep(LOOK_AGAIN_S)

    # --- for requests ---

    async def wait_for(self, topics: Iterable[Topic] | None) -> None:
        """Until the logs of these topics (None: of all) are checked, but not for long."""
        try:
            async with asyncio.timeout(WITHIN_S):
                if topics is not None:
                    named = [(topic, at) for topic in topics for at in range(topic.partitions)]
                    while left := await self._look(named):
                        if not await self._load(left):
                            await asyncio.sleep(LOOK_AGAIN_S)
                while topics is None and (checking := self._unfinished()) is not None:
                    await asyncio.wait([checking])  # or it was begun again
        except (TimeoutError, StoreFault):
            return  # `has` says which

    async def _look(self, partitions: Sequence[Partition]) -> list[Partition]:
        """Note what any worker has checked; returns the others. Raises StoreFault."""
        token = self._history.token
        if self._checked_in != token:
            self._checked_in = token
            self._checked.clear()
        left = []
        unknown = [one for one in partitions if not self.has(*one)]
        for first in range(0, len(unknown), ASKED_AT_ONCE):
            some = unknown[first : first + ASKED_AT_ONCE]
            keys = [topic.key(at) for topic, at in some]
            found = await asyncio.gather(*map(self._history.epoch_if_proved, keys))
            if token != self._history.token:
                return list(partitions)
            for one, key, epoch in zip(some, keys, found, strict=True):
                if epoch is None:
                    left.append(one)
                else:
                    self._epochs.note(key, epoch)
                    self._checked.add(key)
        return left

    async def _load(self, partitions: Sequence[Partition]) -> bool:
        """Loading a log checks it. False if one could not be: its topic was deleted, or the store
        failed."""
        for first in range(0, len(partitions), LOADED_AT_ONCE):
            some = partitions[first : first + LOADED_AT_ONCE]
            loading = [self._logs.log_for(topic, at).current() for topic, at in some]
            try:
                await asyncio.gather(*loading)
            except MoldauError:
                return False
        return True


def _report(checking: asyncio.Task[None]) -> None:
    if not checking.cancelled() and (fault := checking.exception()) is not None:
        logger.error("not every log is checked in the store's history", exc_info=fault)
