"""The current leader epochs of all logs, also of those that this worker has not loaded.

A dict that is empty as long as the store has lost nothing. The worker that begins a new epoch
raises it, and so does any worker that loads a log and finds a higher one in its state: the first
may have died in between.
"""

from __future__ import annotations

import logging
from typing import Protocol

from moldau.broker.errors import StoreFault
from moldau.broker.store.log_integrity import EpochStore
from moldau.broker.store.topics import Change, TopicStore

logger = logging.getLogger("moldau.log")

FIRST_EPOCH = 0  # of a log that has lost nothing


class Topic(Protocol):
    """The part of a topic that is needed here."""

    @property
    def partitions(self) -> int: ...
    def key(self, partition: int) -> bytes: ...


class LeaderEpochs:
    def __init__(self, store: EpochStore, changes: TopicStore) -> None:
        self._store = store
        self._changes = changes
        self._known: dict[bytes, int] = {}  # by the key of the log; only those above 0
        self._unsaved: dict[bytes, tuple[str, int]] = {}  # those that the store does not have yet

    def of(self, key: bytes) -> int:
        return self._known.get(key, FIRST_EPOCH)

    def of_partition(self, topic: Topic, partition: int) -> int:
        """The same as `of`; makes up no key as long as there is nothing to find."""
        return self.of(topic.key(partition)) if self._known else FIRST_EPOCH

    async def load(self) -> None:
        """Read all epochs: at start, and when changes may have been missed."""
        for key, (topic, partition) in list(self._unsaved.items()):
            await self._save(topic, partition, key)
        for key, epoch in (await self._store.all()).items():
            self.note(key, epoch)

    async def refresh(self, key: bytes) -> None:
        """Read the epoch of a log: another worker has announced a change."""
        self.note(key, await self._store.of(key))

    async def raised(self, topic: str, partition: int, key: bytes, epoch: int) -> None:
        """Remember, save and announce a new epoch that is in the log's state already.

        If the store cannot be reached, it is saved later: by `load`, or by a worker that loads the
        log.
        """
        self.note(key, epoch)
        self._unsaved[key] = (topic, partition)
        try:
            await self._save(topic, partition, key)
        except StoreFault as fault:
            logger.warning("%s-%d: epoch %d not announced: %s", topic, partition, epoch, fault)

    def topic_removed(self, topic: Topic) -> None:
        if self._known:
            for partition in range(topic.partitions):
                self._known.pop(topic.key(partition), None)
                self._unsaved.pop(topic.key(partition), None)

    async def _save(self, topic: str, partition: int, key: bytes) -> None:
        if key in self._known and await self._store.raise_to(key, self._known[key]):
            await self._changes.announce(Change("epoch", topic, partition))
        self._unsaved.pop(key, None)

    def note(self, key: bytes, epoch: int) -> None:
        """Remember an epoch that the store has already."""
        if epoch > self.of(key):
            self._known[key] = epoch
