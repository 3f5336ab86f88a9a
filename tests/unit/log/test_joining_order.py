"""Batches of transactions in random order of events: each producer's stay in order, none is twice.

Producers keep up to five batches in flight and send what failed again, as clients do. Meanwhile
their coordinator is slow or fails, markers come through either of two workers, and other producers
write. What is in the log afterwards is compared with what was acknowledged.
"""

from __future__ import annotations

import asyncio
import random
import uuid

import pytest
import uvloop

from moldau.broker.errors import ErrorCode, KafkaError
from moldau.broker.log.partition import PartitionLog
from moldau.broker.store.streams import Entry
from moldau.broker.wire.batch import CONTROL, TRANSACTIONAL, headers
from moldau.broker.wire.control import read_end_marker
from tests.support.drivers.log_host import Host, WaitedAppend, append, stored
from tests.support.drivers.transactional import Coordinator, end, send, transactional_batch
from tests.support.stores.redis_server import RedisServer

IN_FLIGHT = 5
ENDED = (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE)


class Producer:
    """Sends numbered batches in transactions, one after the other; each batch is one record."""

    def __init__(self, producer_id: int, logs: list[PartitionLog], chance: random.Random) -> None:
        self.producer_id = producer_id
        self.number = 0
        self.acknowledged: list[tuple[int, int, int]] = []  # number, sequence, offset
        self._logs = logs
        self._chance = chance
        self._next = 0

    async def transaction(self, coordinators: list[Coordinator]) -> None:
        self.number += 1
        for coordinator in coordinators:
            coordinator.numbers[self.producer_id] = self.number
        log = self._chance.choice(self._logs)  # a client has one leader for a partition
        waiting: list[tuple[int, WaitedAppend]] = []
        for _ in range(self._chance.randrange(1, 12)):
            waiting.append((self._next, send(log, self.producer_id, self._next)))
            self._next += 1
            if len(waiting) == IN_FLIGHT or self._chance.random() < 0.3:
                await self._acknowledge(log, waiting)
        await self._acknowledge(log, waiting)
        for coordinator in coordinators:
            del coordinator.numbers[self.producer_id]
        commit = self._chance.random() < 0.7
        for worker in self._chance.sample(self._logs, self._chance.randrange(1, 3)):
            await end(worker, self.producer_id, self.number, commit=commit)

    async def _acknowledge(
        self, log: PartitionLog, waiting: list[tuple[int, WaitedAppend]]
    ) -> None:
        """Wait for all; from the first that failed on they are sent again, in order."""
        while waiting:
            failed = []
            for sequence, each in waiting:
                try:
                    offset = await each.outcome
                except KafkaError as refusal:
                    if refusal.code in ENDED:
                        raise  # its marker was not sent yet
                    failed.append(sequence)
                else:
                    self.acknowledged.append((self.number, sequence, offset))
            waiting.clear()
            await asyncio.sleep(0.001)
            waiting += [(sequence, send(log, self.producer_id, sequence)) for sequence in failed]


async def _disturb(coordinator: Coordinator, chance: random.Random) -> None:
    while True:
        coordinator.is_held = chance.random() < 0.5
        failing = chance.random() < 0.2
        coordinator.error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if failing else ErrorCode.NONE
        await asyncio.sleep(chance.random() / 200)
        coordinator.go_on()


async def _run(url: str, seed: int) -> None:
    chance = random.Random(seed)
    topic = f"order-{uuid.uuid4().hex[:12]}"
    async with Host(url, "one") as one, Host(url, "two", worker=1, workers=2) as two:
        logs = [await one.create(topic), two.log(topic)]
        coordinators = [Coordinator(), Coordinator()]
        for host, coordinator in zip((one, two), coordinators, strict=True):
            host.coordinator = coordinator
        disturbing = [
            asyncio.ensure_future(_disturb(coordinator, chance)) for coordinator in coordinators
        ]
        producers = [Producer(number, logs, chance) for number in (7, 8, 9)]

        async def produce(producer: Producer) -> None:
            for _ in range(4):
                await producer.transaction(coordinators)

        async def disturb_logs() -> None:
            for at in range(20):
                log = chance.choice(logs)
                await append(log, transactional_batch(20, at, [b"plain"], plain=True))

        try:
            await asyncio.gather(*map(produce, producers), disturb_logs())
        finally:
            for task in disturbing:
                task.cancel()
            await asyncio.gather(*disturbing, return_exceptions=True)
        for producer in producers:
            _check(producer, await stored(one, logs[0]))


def _check(producer: Producer, entries: list[Entry]) -> None:
    number = 1
    found: list[tuple[int, int, int]] = []
    kinds: dict[int, bool] = {}
    for entry in entries:
        at = 0
        for header in headers(entry.blob):
            if header.producer_id == producer.producer_id:
                assert header.attributes & TRANSACTIONAL
                if header.attributes & CONTROL:
                    marker = read_end_marker(entry.blob, at)
                    assert marker.coordinator_epoch == number, "one marker each, in order"
                    kinds[number] = marker.commit
                    number += 1
                else:
                    found.append((number, header.base_sequence, header.base_offset))
            at += header.size
    assert found == producer.acknowledged
    assert len(kinds) == 4


@pytest.mark.parametrize("seed", range(12))
def test_7_9_in_order_whatever_happens(server: RedisServer, seed: int) -> None:
    uvloop.run(_run(server.url, seed))
