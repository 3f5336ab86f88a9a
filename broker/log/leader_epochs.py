"""The leader epochs a worker tells clients of, of all logs: also of those it has not loaded.

A dict that is empty as long as the store has lost nothing. Raised by the worker that begins a new
epoch, and by any that loads a log and finds a higher one in its state: the first may have died in
between.
"""

from __future__ import annotations

import logging

from moldau.broker.errors import StoreFault
from moldau.broker.log.log import LEADER_EPOCH
from moldau.broker.store.epochs import EpochStore
from moldau.broker.store.topics import Change, TopicStore
from moldau.broker.topics.topics import Topic

logger = logging.getLogger("moldau.log")


class LeaderEpochs:
    def __init__(self, store: EpochStore, changes: TopicStore) -> None:
        self._store = store
        self._changes = changes
        self._known: dict[bytes, int] = {}  # by the key of the log; those above 0
        self._unsaved: dict[bytes, tuple[str, int]] = {}  # the store could not be reached

    def of(self, key: bytes) -> int:
        return self._known.get(key, LEADER_EPOCH)

    def of_partition(self, topic: Topic, partition: int) -> int:
        """The same, without making up the key as long as there is nothing to find."""
        return self.of(topic.key(partition)) if self._known else LEADER_EPOCH

    async def load(self) -> None:
        """Read all of them: at start, and when changes may have been missed."""
        for key, (topic, partition) in list(self._unsaved.items()):
            await self._save(topic, partition, key)
        for key, epoch in (await self._store.all()).items():
            self.note(key, epoch)

    async def refresh(self, key: bytes) -> None:
        """Another worker has announced a change of this log's."""
        self.note(key, await self._store.of(key))

    async def raised(self, topic: str, partition: int, key: bytes, epoch: int) -> None:
        """A log is in a new epoch, which is in its state already: remember, save and announce it.

        Without the store it is saved later: by `load`, or by a worker that loads the log.
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
        """It is in the store already."""
        if epoch > self.of(key):
            self._known[key] = epoch
