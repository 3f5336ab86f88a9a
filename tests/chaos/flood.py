"""Idempotent producers at full speed, in threads, that note every acknowledgement.

Each has a partition of its own and up to five batches under way. After an error it sends everything
unanswered again, in order, as clients do; so records are refused, but none is sent out of turn.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, deque

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tests.support.proofs.observed_producer import new_producer_id
from tests.support.proofs.observer import NOT_THERE, RETRIABLE, Observer
from tests.support.raw.client import NAMED_PRODUCE, RawClient, make_batch

UNDER_WAY = 5
FOLLOWS = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER  # from an earlier one that was refused


class Flood:
    """`size`: of each record."""

    def __init__(self, observer: Observer, *, name: str = "flood", size: int = 10_000) -> None:
        self._told = threading.Event()
        ports = observer.ports
        self._lanes = [
            _Lane(observer, f"{name}-{number}", number, ports[number % len(ports)], size, self)
            for number in range(observer.partitions)
        ]
        self.refusals: Counter[str] = Counter()

    def start(self) -> None:
        for lane in self._lanes:
            lane.start()

    @property
    def acknowledged(self) -> int:
        return sum(lane.acknowledged for lane in self._lanes)

    @property
    def all_refused(self) -> bool:
        """Has every producer met an error since its last acknowledgement?"""
        return all(lane.is_refused for lane in self._lanes)

    @property
    def is_told(self) -> bool:
        return self._told.is_set()

    def stop(self) -> None:
        """What is not answered by now stays so."""
        self._told.set()
        for lane in self._lanes:
            lane.join(40)
            assert not lane.is_alive()


class _Lane(threading.Thread):
    def __init__(
        self, observer: Observer, name: str, partition: int, port: int, size: int, flood: Flood
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._observer = observer
        self._partition = partition
        self._port = port
        self._filling = os.urandom(size // 2).hex().encode()
        self._flood = flood
        self._next = 0
        self._unanswered: deque[tuple[int, bytes]] = deque()
        self._id = -1
        self.acknowledged = 0
        self.is_refused = False
        observer.idempotent.add(name.encode())

    def run(self) -> None:
        client: RawClient | None = None
        while not self._flood.is_told:
            try:
                if self._id < 0:
                    self._id = new_producer_id(self._port)
                client = client or RawClient(self._port, timeout=10)
                self._turn(client)
            except NOT_THERE:
                if client is not None:
                    client.close()
                client = None
                self.is_refused = True
                time.sleep(0.05)
            except BaseException as fault:
                self._observer.must_not(f"{self.name}: {fault!r}")
                break
        if client is not None:
            client.close()

    def _turn(self, client: RawClient) -> None:
        """Send what is unanswered and new batches up to five, and take all the answers."""
        while len(self._unanswered) < UNDER_WAY:
            value = b"%b:%d|%b" % (self.name.encode(), self._next, self._filling)
            self._unanswered.append((self._next, value))
            self._next += 1
        sent = list(self._unanswered)
        for number, value in sent:
            client.send(self._request(number, value), NAMED_PRODUCE)
        refused = False
        for number, value in sent:
            reply = client.receive()
            answer = reply.responses[0].partition_responses[0]
            code = ErrorCode(answer.error_code)
            if code is ErrorCode.NONE:
                self._observer.acknowledged(self._partition, answer.base_offset, value)
                self._unanswered.remove((number, value))
                self.acknowledged += 1
                continue
            refused = True
            self._flood.refusals[code.name] += 1
            assert code in RETRIABLE or code is FOLLOWS, f"{number}: {code.name}"
        self.is_refused = refused
        if refused:
            time.sleep(0.02)

    def _request(self, number: int, value: bytes) -> ProduceRequest:
        batch = make_batch(
            [(None, value, 1_000)], producer_id=self._id, producer_epoch=0, base_sequence=number
        )
        data = PartitionProduceData(self._partition, memoryview(batch))
        topics = [TopicProduceData(name=self._observer.topic, partition_data=[data])]
        return ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=topics)
