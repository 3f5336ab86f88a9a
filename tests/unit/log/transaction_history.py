"""Logs with transactions: written at random, and what has to be read of them."""

from __future__ import annotations

import random
from typing import Any

from moldau.broker.log.partition import PartitionLog
from moldau.broker.store import keys
from moldau.broker.wire.batch import BatchHeader, headers
from moldau.broker.wire.records import Record
from tests.support.drivers.cleaner import NOW, contents, write
from tests.support.drivers.log_host import Host
from tests.support.drivers.transactional import Coordinator, Participant

DELETED_FROM = 7  # keys from here on are deleted now and then
Contents = dict[str, tuple[int, str | None]]


def participants(host: Host, count: int) -> list[Participant]:
    coordinator = Coordinator()
    host.coordinator = coordinator
    return [Participant(coordinator, 7 + number) for number in range(count)]


async def cleaned_batches(host: Host, log: PartitionLog) -> list[BatchHeader]:
    entries = await host.streams.first_entries(log.reader.clean_key, 0, 10_000)
    return [header for entry in entries for header in headers(entry.blob)]


def indexed(store: Any, log: PartitionLog) -> list[int]:
    """The markers of the aborted transactions that the store knows."""
    return [int(score) for _, score in store.zrange(keys.aborted(log.key), 0, -1, withscores=True)]


class Model:
    """What was committed, aborted and left open, by offset."""

    def __init__(self) -> None:
        self.committed: dict[int, tuple[str, str | None]] = {}
        self.aborted: set[int] = set()
        self.open: dict[int, dict[int, tuple[str, str | None]]] = {}  # by producer

    def end(self, producer: int, *, commit: bool) -> None:
        records = self.open.pop(producer, {})
        if commit:
            self.committed |= records
        else:
            self.aborted |= records.keys()

    def newest(self, start: int, end: int) -> Contents:
        """The newest value of each key among what is committed from `start` up to `end`."""
        visible = sorted(at for at in self.committed if start <= at < end)
        return {self.committed[at][0]: (at, self.committed[at][1]) for at in visible}


def random_pairs(rng: random.Random, label: object) -> list[tuple[str, str | None]]:
    pairs: list[tuple[str, str | None]] = []
    for _ in range(rng.randint(1, 3)):
        key = rng.randrange(10)
        is_tombstone = key >= DELETED_FROM and rng.random() < 0.5
        pairs.append((f"key-{key}", None if is_tombstone else f"{label}-{rng.random()}"))
    return pairs


class History:
    """Writes at random, through any of several logs of one partition."""

    def __init__(self, rng: random.Random, producers: list[Participant]) -> None:
        self.model = Model()
        self._rng = rng
        self.producers = producers

    async def write(self, log: PartitionLog, label: object) -> None:
        rng, model = self._rng, self.model
        producer = rng.choice(self.producers)
        choice = rng.random()
        if choice < 0.25:
            pairs = random_pairs(rng, label)
            base = await write(log, *pairs)
            model.committed |= {base + at: pair for at, pair in enumerate(pairs)}
        elif choice < 0.7 or not producer.is_open:
            pairs = random_pairs(rng, label)
            base = await producer.write(log, *pairs, at=NOW)
            mine = model.open.setdefault(producer.producer, {})
            mine |= {base + at: pair for at, pair in enumerate(pairs)}
        else:
            commit = rng.random() < 0.5
            # Before it is in the log, as readers may see it before the writer knows.
            records = model.open.get(producer.producer, {})
            if commit:
                model.committed |= records
            await producer.end(log, commit=commit)
            model.end(producer.producer, commit=commit)


def check_seen(model: Model, seen: list[Record], offset: int, stable: int, label: object) -> None:
    """Nothing that was not committed, and the newest of each key that was not deleted since."""
    offsets = [record.offset for record in seen]
    assert offsets == sorted(set(offsets)), label
    wrong = [at for at in offsets if at not in model.committed]
    assert not wrong, (label, wrong, [at in model.aborted for at in wrong])
    found = contents(seen)
    deleted = {key: at for at, (key, value) in sorted(model.committed.items()) if value is None}
    for key, at in model.newest(offset, stable).items():
        if deleted.get(key, -1) < at[0]:
            assert found.get(key, (-1, None))[0] >= at[0], (label, key, at, found.get(key))
