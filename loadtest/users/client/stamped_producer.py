"""A producer of stamped records: batches on a schedule, numbered for each partition.

With idempotence a request that failed is sent again as it was, as clients do. Without it a request
of unknown outcome is not repeated: the producer goes on under a new name (see stamped.py).
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from broker.errors import ErrorCode
from broker.wire.batch import split_batches
from broker.wire.messages.init_producer_id import InitProducerIdRequest
from broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from broker.wire.records import read_records
from loadtest.users.client.connection import Refused, top_level
from loadtest.users.client.pace import due_us
from loadtest.users.client.session import RETRIABLE, RETRY_S, Fault, Session, blob_of
from loadtest.users.client.stamped import (
    DECODED_LIMIT,
    Sequence,
    Stamp,
    new_name,
    read_stamp,
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
    """The last record of a partition that the broker said it has."""

    offset: int
    producer: bytes
    number: int


def _produced(answer: Any) -> int:
    return int(answer.responses[0].partition_responses[0].error_code)


class StampedProducer:
    def __init__(self, session: Session, settings: ProducerSettings) -> None:
        self._session = session
        self._settings = settings
        self._begin_anew()
        self.acknowledged: dict[int, Acknowledged] = {}

    def _begin_anew(self) -> None:
        self._name = new_name()
        self._producer_id, self._epoch = -1, -1
        self._next: dict[int, int] = {}  # number of a partition's next record

    def produce(self, partition: int, due: float) -> list[str]:
        """One batch; tells what is wrong with the offset it was given."""
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
            place = f"{self._settings.topic}-{partition}"
            return [f"lost: {place} offset {base} was given again, after {before.offset}"]
        return []

    def _request(self, partition: int, due: float) -> ProduceRequest:
        settings = self._settings
        sequence = Sequence()
        if settings.idempotent:
            if self._producer_id < 0:
                self._introduce()
            first = self._next.get(partition, 0)
            sequence = Sequence(self._producer_id, self._epoch, first)
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

    def _introduce(self) -> None:
        request = InitProducerIdRequest(None, 60_000)
        answer = self._session.ask(request, top_level)
        self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch

    def _send(self, partition: int, request: ProduceRequest, due: float) -> None:
        try:
            self._session.leader(self._settings.topic, partition, "produce").send(request, due=due)
        except Fault:
            self._begin_anew()
            raise
        self._count(partition)

    def _call(self, partition: int, request: ProduceRequest, due: float) -> int | None:
        """The batch's base offset; None: it is there, since an earlier try."""
        while True:
            try:
                wire = self._session.leader(self._settings.topic, partition, "produce")
                fine = (ErrorCode.DUPLICATE_SEQUENCE_NUMBER,) if self._settings.idempotent else ()
                answer = wire.call(request, _produced, due=due, fine=fine)
            except Fault as fault:
                self._session.forget()
                final = isinstance(fault, Refused) and fault.code not in RETRIABLE
                if final or not self._settings.idempotent:
                    self._begin_anew()
                    raise
                time.sleep(RETRY_S)
                continue
            self._count(partition)
            told = answer.responses[0].partition_responses[0]
            return None if told.error_code or told.base_offset < 0 else int(told.base_offset)

    def _count(self, partition: int) -> None:
        self._next[partition] = self._next.get(partition, 0) + self._settings.records

    def read_back(self) -> list[str]:
        """The last record acknowledged of each partition has to be there, as it was sent."""
        faults: list[str] = []
        for partition, expected in self.acknowledged.items():
            answer = self._session.fetch(
                self._settings.topic,
                partition,
                expected.offset,
                max_bytes=READ_BACK_BYTES,
                purpose="read back",
            )
            if answer.error_code:
                place = self._settings.topic, partition, expected.offset + 1
                faults += self._session.out_of_range(*place)[1]
                continue
            found = _stamp_at(blob_of(answer), expected.offset)
            if found is None or (found.producer, found.number) != expected[1:]:
                faults.append(
                    f"lost: {self._settings.topic}-{partition} offset {expected.offset} was "
                    f"acknowledged, and holds {found or 'nothing'} at the end of the run"
                )
        return faults


def _stamp_at(blob: Any, offset: int) -> Stamp | None:
    for batch in split_batches(blob):
        for record in read_records(batch, DECODED_LIMIT):
            if record.offset == offset:
                return read_stamp(record.value)
    return None
