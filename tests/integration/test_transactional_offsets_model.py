"""Offsets of transactions against a model, many requests at once: whatever is on its way together,
memory and store end up as if it had come one by one, in the order in which it was sent."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from moldau.broker.group.offsets import TopicPartition
from tests.support.drivers.group_shell import Shell, shell
from tests.support.stores.redis_server import RedisServer

PRODUCERS = (1, 2, 3)
PARTITIONS = range(4)


class Model:
    """One group. An offset is the number of the request that brought it, so all are distinct."""

    def __init__(self, group: str, rng: random.Random) -> None:
        self.group = group
        self.rng = rng
        self.sent = 0
        self.committed: dict[int, int] = {}
        self.pending: dict[tuple[int, int], int | None] = {}
        self._orders: dict[tuple[int, int], int] = {}
        self.numbers = dict.fromkeys(PRODUCERS, 1)

    def batch(self, own: Shell) -> list[Coroutine[Any, Any, None]]:
        """Requests that are sent at once; the model has their outcome already."""
        ending: dict[int, bool] = {}
        works = []
        for _ in range(self.rng.randint(1, 6)):
            self.sent += 1
            kind = self.rng.choice(["commit", "txn", "txn", "txn", "end", "drop"])
            some = self.rng.sample(PARTITIONS, self.rng.randint(1, 3))
            places = [("t", partition) for partition in some]
            producer_id = self.rng.choice(PRODUCERS)
            number = self.numbers[producer_id]
            if kind == "commit":
                self._commit(some)
                works.append(own.commit(self.group, self.sent, *places))
            elif kind == "drop":
                self._drop(some)
                gone = [TopicPartition(*place) for place in places]
                works.append(own.coordinator.offsets.drop(self.group, gone))
            elif kind == "end":
                commit = ending.setdefault(producer_id, self.rng.random() < 0.7)  # perhaps twice
                self._end(producer_id, commit)
                works.append(own.end(self.group, producer_id, number, commit=commit))
            elif producer_id not in ending:  # the next transaction begins after the marker
                self._txn(producer_id, some)
                works.append(own.txn_commit(self.group, producer_id, number, self.sent, *places))
        for producer_id in ending:
            self.numbers[producer_id] += 1
        return works

    def _commit(self, partitions: list[int]) -> None:
        for partition in partitions:
            self._put(partition, self.sent, self.sent)

    def _put(self, partition: int, offset: int, order: int) -> None:
        self.committed[partition] = offset
        for place in self.pending:
            if place[1] == partition and self._orders[place] < order:
                self.pending[place] = None

    def _txn(self, producer_id: int, partitions: list[int]) -> None:
        for partition in partitions:
            self.pending[producer_id, partition] = self.sent
            self._orders[producer_id, partition] = self.sent

    def _end(self, producer_id: int, commit: bool) -> None:
        for place in [place for place in self.pending if place[0] == producer_id]:
            offset = self.pending.pop(place)
            if commit and offset is not None:
                self._put(place[1], offset, self._orders[place])

    def _drop(self, partitions: list[int]) -> None:
        for partition in partitions:
            self.committed.pop(partition, None)
            for producer_id in PRODUCERS:
                self.pending.pop((producer_id, partition), None)

    def check(self, own: Shell) -> None:
        found = {
            partition: offset
            for partition in PARTITIONS
            if (offset := own.offset(self.group, "t", partition)) is not None
        }
        assert found == self.committed
        assert {
            (producer_id, partition): offset
            for (producer_id, _, partition), offset in own.pending(self.group).items()
        } == self.pending


@pytest.mark.parametrize("seed", range(12))
async def test_7_24_7_26_many_at_once_as_one_by_one(server: RedisServer, seed: int) -> None:
    rng = random.Random(seed)
    model = Model(f"group-{seed}", rng)
    for _ in range(4):
        async with shell(server) as own:
            await own.commit(model.group, 0, ("other", 0))  # only a known group's can be deleted
            model.check(own)
            for _ in range(40):
                await asyncio.gather(*model.batch(own))
                model.check(own)
