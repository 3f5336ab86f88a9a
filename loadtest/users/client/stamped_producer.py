"""A producer of stamped records, numbered per partition.

With idempotence a request that failed is sent again unchanged, as clients do. Without it a request
of unknown outcome is not repeated: the producer continues under a new name (see stamped.py).
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.messages.init_producer_id import InitProducerIdRequest
from moldau.broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from moldau.loadtest.users.client.connection import RequestRefused, top_level_error
from moldau.loadtest.users.client.schedule import due_us
from moldau.loadtest.users.client.session import (
    REQUEST_ERRORS,
    RETRIABLE,
    RETRY_S,
    Session,
    records_of,
)
from moldau.loadtest.users.client.stamped import (
    ProducerSequence,
    new_name,
    stamp_at,
    stamped_batch,
)

PRODUCE_TIMEOUT_MS = 30_000
READ_BACK_BYTES = 1 << 20


class ProducerSettings(NamedTuple):
    topic: str
    record_bytes: int = 1000
    batch_bytes: int = 4000
    codec: int = 0
    acks: int = -1
    idempotent: bool = True

    @property
    def records(self) -> int:
        return max(self.batch_bytes // max(self.record_bytes, 1), 1)


class Acknowledged(NamedTuple):
    """The last record of a partition that the broker acknowledged."""

    offset: int
    producer: bytes
    number: int


def produce_error(answer: Any) -> int:
    return int(answer.responses[0].partition_responses[0].error_code)


class StampedProducer:
    def __init__(self, session: Session, settings: ProducerSettings) -> None:
        self._session = session
        self._settings = settings
        self._expected = (ErrorCode.DUPLICATE_SEQUENCE_NUMBER,) if settings.idempotent else ()
        self._start_over()
        self.acknowledged: dict[int, Acknowledged] = {}

    def _start_over(self) -> None:
        self._name = new_name()
        self._producer_id, self._epoch = -1, -1
        self._next: dict[int, int] = {}  # number of a partition's next record

    def produce(self, partition: int, due: float) -> list[str]:
        """Send one batch; returns violations about the offset it was assigned."""
        request = self._request(partition, due)
        if self._settings.acks == 0:
            self._send(partition, request, due)
            return []
        base = self._call(partition, request, due)
        number = self._next[partition] - 1
        if base is None:
            return []
        before = self.acknowledged.get(partition)
        last = base + self._settings.records - 1
        self.acknowledged[partition] = Acknowledged(last, self._name, number)
        if before is not None and base <= before.offset:
            name = f"{self._settings.topic}-{partition}"
            return [f"lost: {name} offset {base} was assigned again, after {before.offset}"]
        return []

    def _request(self, partition: int, due: float) -> ProduceRequest:
        settings = self._settings
        sequence = ProducerSequence()
        if settings.idempotent:
            if self._producer_id < 0:
                self._init_producer_id()
            first = self._next.get(partition, 0)
            sequence = ProducerSequence(self._producer_id, self._epoch, first)
        batch = stamped_batch(
            self._name,
            self._next.get(partition, 0),
            settings.records,
            settings.record_bytes,
            due_us(due),
            settings.codec,
            sequence,
        )
        data = [PartitionProduceData(partition, batch)]
        topics = [TopicProduceData(settings.topic, partition_data=data)]
        return ProduceRequest(None, settings.acks, PRODUCE_TIMEOUT_MS, topics)

    def _init_producer_id(self) -> None:
        request = InitProducerIdRequest(None, 60_000)
        answer = self._session.ask(request, top_level_error)
        self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch

    def _send(self, partition: int, request: ProduceRequest, due: float) -> None:
        try:
            self._session.leader(self._settings.topic, partition, "produce").send(request, due=due)
        except REQUEST_ERRORS:
            self._start_over()
            raise
        self._count(partition)

    def _call(self, partition: int, request: ProduceRequest, due: float) -> int | None:
        """The batch's base offset; None: an earlier attempt had appended it."""
        while True:
            try:
                leader = self._session.leader(self._settings.topic, partition, "produce")
                answer = leader.call(request, produce_error, due=due, expected=self._expected)
            except REQUEST_ERRORS as error:
                self._session.forget_brokers()
                final = isinstance(error, RequestRefused) and error.code not in RETRIABLE
                if final or not self._settings.idempotent:
                    self._start_over()
                    raise
                time.sleep(RETRY_S)
                continue
            self._count(partition)
            result = answer.responses[0].partition_responses[0]
            return None if result.error_code or result.base_offset < 0 else int(result.base_offset)

    def _count(self, partition: int) -> None:
        self._next[partition] = self._next.get(partition, 0) + self._settings.records

    def read_back(self) -> list[str]:
        """Violations: the last acknowledged record of each partition has to be there, as sent."""
        violations: list[str] = []
        for partition, expected in self.acknowledged.items():
            answer = self._session.fetch(
                self._settings.topic,
                partition,
                expected.offset,
                max_bytes=READ_BACK_BYTES,
                purpose="read back",
            )
            if answer.error_code:
                position = self._settings.topic, partition, expected.offset + 1
                violations += self._session.out_of_range(*position)[1]
                continue
            found = stamp_at(records_of(answer), expected.offset)
            if found is None or (found.producer, found.number) != expected[1:]:
                violations.append(
                    f"lost: {self._settings.topic}-{partition} offset {expected.offset} was "
                    f"acknowledged, and holds {found or 'nothing'} at the end of the run"
                )
        return violations
