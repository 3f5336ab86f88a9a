"""Which logs are checked under the present store id, for answers about logs that are not loaded.

A log that may have lost its end is checked when it is loaded: it is intact, or continues in a new
leader epoch. Until then the epoch that is known of it may be out of date. After a start, and when
the store has changed, each worker checks the logs it leads in the background; a request that names
topics has theirs checked at once. Once all logs are checked a request costs one comparison.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from moldau.broker.errors import MoldauError, StoreFault
from moldau.broker.store_loss import leader_epochs
from moldau.broker.store_loss.leader_epochs import LeaderEpochs
from moldau.broker.store_loss.log_integrity import LogIntegrity

logger = logging.getLogger("moldau.log")

# How long a request waits. A log that is not checked by then has no leader in the answer, and
# clients ask again.
WITHIN_S = 5.0
ASKED_AT_ONCE = 256  # commands in one write
LOADED_AT_ONCE = 8  # each takes some megabytes of memory, here and in the store
LOOK_AGAIN_S = 0.1  # for logs that other workers lead, or that could not be loaded


class Topic(leader_epochs.Topic, Protocol):
    @property
    def name(self) -> str: ...
    @property
    def native(self) -> bool: ...


T = TypeVar("T", bound=Topic)
T_co = TypeVar("T_co", bound=Topic, covariant=True)
T_contra = TypeVar("T_contra", bound=Topic, contravariant=True)


class Topics(Protocol[T_co]):
    def all(self) -> Iterable[T_co]: ...


class LoadsItself(Protocol):
    """A log; `current` loads it if it is not loaded."""

    async def current(self) -> None: ...


class LogFinder(Protocol[T_contra]):
    def log_for(self, topic: T_contra, partition: int) -> LoadsItself: ...
    def leads(self, topic: str, partition: int) -> bool: ...


class CheckedLogs(Generic[T]):
    def __init__(
        self, topics: Topics[T], logs: LogFinder[T], integrity: LogIntegrity, epochs: LeaderEpochs
    ) -> None:
        self._topics = topics
        self._logs = logs
        self._integrity = integrity
        self._epochs = epochs
        self._complete_in: bytes | None = None  # the store id under which all logs are checked
        self._checked_in = b""  # the store id under which those in `_checked` are
        self._checked: set[bytes] = set()
        self._checking: asyncio.Task[None] | None = None

    @property
    def is_complete(self) -> bool:
        """Is every log checked? A new log is, because it is created under the present store id."""
        return self._complete_in == self._integrity.store_id

    def has(self, topic: T, partition: int) -> bool:
        if self.is_complete or topic.native:  # a native log has no epochs
            return True
        return (
            self._checked_in == self._integrity.store_id and topic.key(partition) in self._checked
        )

    # --- everything, in the background ---

    def begin(self) -> None:
        """Check all logs: the topics were loaded from the store, or loaded again."""
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
            store_id = self._integrity.store_id
            every = [(topic, at) for topic in self._topics.all() for at in range(topic.partitions)]
            try:
                left = await self._look(every)
            except StoreFault:
                await asyncio.sleep(LOOK_AGAIN_S)
                continue
            if not left and store_id == self._integrity.store_id:
                self._complete_in = store_id
                self._checked.clear()
                return
            led = [one for one in left if self._logs.leads(one[0].name, one[1])]
            await self._load(led)
            await asyncio.sleep(LOOK_AGAIN_S)

    # --- for requests ---

    async def wait_for(self, topics: Iterable[T] | None) -> None:
        """Wait until the logs of these topics (None: of all) are checked, but not for long."""
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
            return  # `has` tells which are

    async def _look(self, partitions: Sequence[tuple[T, int]]) -> list[tuple[T, int]]:
        """Note the logs that any worker has checked; returns the others. Raises StoreFault."""
        store_id = self._integrity.store_id
        if self._checked_in != store_id:
            self._checked_in = store_id
            self._checked.clear()
        left = []
        unknown = [one for one in partitions if not self.has(*one)]
        for first in range(0, len(unknown), ASKED_AT_ONCE):
            some = unknown[first : first + ASKED_AT_ONCE]
            keys = [topic.key(at) for topic, at in some]
            found = await asyncio.gather(*map(self._integrity.epoch_if_intact, keys))
            if store_id != self._integrity.store_id:
                return list(partitions)
            for one, key, epoch in zip(some, keys, found, strict=True):
                if epoch is None:
                    left.append(one)
                else:
                    self._epochs.note(key, epoch)
                    self._checked.add(key)
        return left

    async def _load(self, partitions: Sequence[tuple[T, int]]) -> bool:
        """Load logs, which checks them. False: one could not be loaded, because its topic was
        deleted or the store failed."""
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
        logger.error("the check of all logs failed", exc_info=fault)
