"""Producers of transactions, each of one partition, on connections of their own.

See loadtest/bench/transactions.py. A producer's batch is encoded once; what differs from one
request to the next, its producer and sequence number, is written over, and the checksum with it.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.batch import CRC_AT, TRANSACTIONAL, checksum
from moldau.broker.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from moldau.broker.wire.messages.end_txn import EndTxnRequest
from moldau.broker.wire.messages.init_producer_id import InitProducerIdRequest
from moldau.broker.wire.messages.produce import ProduceRequest
from moldau.broker.wire.records import Record, build_batch
from moldau.broker.wire.schema import Message
from moldau.loadtest.bench.harness.client import (
    Address,
    Client,
    RequestFailed,
    check_error,
    new_name,
)
from moldau.loadtest.bench.harness.coordinator_requests import COORDINATOR_NOT_READY, coordinators
from moldau.loadtest.bench.harness.request_connection import RequestConnection
from moldau.loadtest.bench.harness.requests import (
    VERSIONS,
    decode,
    encode,
    produce_request,
)
from moldau.loadtest.bench.harness.secured import open_connection
from moldau.loadtest.bench.harness.target import Target
from moldau.ops.client import TRANSACTION

TRANSACTION_TIMEOUT_MS = 60_000
AGAIN = COORDINATOR_NOT_READY | {ErrorCode.CONCURRENT_TRANSACTIONS}
RETRY_S = 0.02  # as Java's producer waits while the transaction before is still ending
RETRY_TIMEOUT_S = 60.0
MARKERS_TIMEOUT_S = 30.0

_PRODUCER = struct.Struct(">qhi")  # producer id, epoch, base sequence
_PRODUCER_AT = 43  # in the header of a batch
_CRC = struct.Struct(">I")


class Form(NamedTuple):
    """How a producer takes part in transactions; versions are those of harness/requests.py unless
    the form needs others."""

    name: str
    produce_version: int = VERSIONS[ProduceRequest]
    end_version: int = VERSIONS[EndTxnRequest]
    adds_partitions: bool = False  # before it writes to them
    is_transactional: bool = True


PLAIN = Form("plain", is_transactional=False)  # idempotent, as any producer is
V1 = Form("v1", adds_partitions=True)
V2 = Form("v2", produce_version=12, end_version=5)  # Produce adds; the epoch rises at the end


class ProducerBatches:
    """Produce requests of one batch each, for one partition."""

    def __init__(
        self, form: Form, transactional_id: str, topic: str, partition: int, size: int
    ) -> None:
        record = Record(0, time.time_ns() // 1_000_000, None, bytes(size))
        batch = build_batch(
            [record],
            base_offset=0,
            last_offset=0,
            attributes=TRANSACTIONAL if form.is_transactional else 0,
        )
        name = transactional_id if form.is_transactional else None
        request = produce_request(topic, partition, bytes(batch), name)
        self._frame = bytearray(encode(request, version=form.produce_version))
        self._at = self._frame.index(batch)
        self._batch = memoryview(self._frame)[self._at : self._at + len(batch)]

    def frame(self, producer_id: int, producer_epoch: int, sequence: int) -> bytes:
        _PRODUCER.pack_into(self._batch, _PRODUCER_AT, producer_id, producer_epoch, sequence)
        _CRC.pack_into(self._batch, CRC_AT, checksum(self._batch))
        return bytes(self._frame)


class TransactionalProducer:
    """One transaction after the other. Raises RequestFailed.

    `leader` and `coordinator` may be one connection: clients have one to each broker.
    """

    def __init__(
        self,
        form: Form,
        transactional_id: str,
        place: tuple[str, int],
        leader: RequestConnection,
        coordinator: RequestConnection,
        size: int,
    ) -> None:
        self._form = form
        self._id = transactional_id
        self._topic, self._partition = place
        self._leader, self._coordinator = leader, coordinator
        self._batches = ProducerBatches(form, transactional_id, *place, size)
        self._producer_id, self._epoch, self._sequence = -1, -1, 0
        self.retries = 0
        # Of the last transaction: when its last response came (time.perf_counter), how long EndTxn
        # took.
        self.ended_at = self.end_seconds = 0.0

    async def init(self) -> None:
        name = self._id if self._form.is_transactional else None
        request = InitProducerIdRequest(name, TRANSACTION_TIMEOUT_MS)
        answer = await self._until_done(self._coordinator, request, _top_level_error)
        self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch

    async def transaction(self, *, commit: bool = True) -> int:
        """One batch, and the end if there is one; returns the batch's offset."""
        if self._form.adds_partitions:
            await self._add_partition()
        offset = await self._produce()
        self.ended_at = self._leader.received_at
        if self._form.is_transactional:
            began = time.perf_counter()
            await self._end(commit)
            self.ended_at = self._coordinator.received_at
            self.end_seconds = self.ended_at - began
        return offset

    async def _add_partition(self) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=self._producer_id,
            v3_and_below_producer_epoch=self._epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(self._topic, [self._partition])],
        )
        await self._until_done(self._coordinator, request, _added_error)

    async def _produce(self) -> int:
        version = self._form.produce_version
        frame = self._batches.frame(self._producer_id, self._epoch, self._sequence)

        async def ask() -> Any:
            return decode(ProduceRequest, await self._leader.ask(frame), version)

        answer = await self._again(ask, "Produce", _produced_error)
        self._sequence += 1
        offset: int = answer.responses[0].partition_responses[0].base_offset
        return offset

    async def _end(self, commit: bool) -> None:
        request = EndTxnRequest(self._id, self._producer_id, self._epoch, commit)
        version = self._form.end_version
        answer = await self._until_done(self._coordinator, request, _top_level_error, version)
        if version >= V2.end_version:
            self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch
            self._sequence = 0

    async def _until_done(
        self,
        connection: RequestConnection,
        request: Message,
        error_of: Callable[[Any], int],
        version: int | None = None,
    ) -> Any:
        async def ask() -> Any:
            return await connection.call(request, version)

        return await self._again(ask, type(request).__name__, error_of)

    async def _again(self, ask: Any, name: str, error_of: Callable[[Any], int]) -> Any:
        """The response to a request, sent again while the transaction before is still ending."""
        answer = await ask()
        if not error_of(answer):
            return answer
        deadline = time.monotonic() + RETRY_TIMEOUT_S
        while (error := error_of(answer)) in AGAIN:
            if time.monotonic() > deadline:
                raise RequestFailed(f"{name}: {ErrorCode(error).name} for {RETRY_TIMEOUT_S:.0f} s")
            self.retries += 1
            await asyncio.sleep(RETRY_S)
            answer = await ask()
        check_error(name, error)
        return answer


def _top_level_error(answer: Any) -> int:
    return int(answer.error_code)


def _added_error(answer: Any) -> int:
    topic = answer.results_by_topic_v3_and_below[0]
    return int(topic.results_by_partition[0].partition_error_code)


def _produced_error(answer: Any) -> int:
    return int(answer.responses[0].partition_responses[0].error_code)


class Producers:
    """Producers of one form, in a topic of their own."""

    def __init__(self, target: Target, form: Form, partitions: int, size: int) -> None:
        self._target, self._form = target, form
        self._partitions, self._size = partitions, size
        self._connections: list[RequestConnection] = []
        self.topic = ""
        self.leaders: dict[int, Address] = {}

    @contextmanager
    def with_topic(self) -> Iterator[Producers]:
        with (
            Client(self._target.address) as client,
            client.temporary_topic(self._partitions) as topic,
        ):
            self.topic, self.leaders = topic, client.leaders(topic)
            yield self

    async def start(self, count: int) -> list[TransactionalProducer]:
        """Spread over the partitions, each on connections of its own."""
        ids = [new_name() for _ in range(count)]
        if self._form.is_transactional:
            found = coordinators(self._target, ids, TRANSACTION)
        else:
            found = dict.fromkeys(ids, self.leaders[0])
        made = []
        for number, transactional_id in enumerate(ids):
            place = self.topic, number % self._partitions
            at, asked = self.leaders[place[1]], found[transactional_id]
            leader = await self.connect(at)
            coordinator = leader if at == asked else await self.connect(asked)
            made.append(
                TransactionalProducer(
                    self._form, transactional_id, place, leader, coordinator, self._size
                )
            )
        await asyncio.gather(*(producer.init() for producer in made))
        return made

    async def connect(self, address: Address) -> RequestConnection:
        connection = await open_connection(RequestConnection, address)
        self._connections.append(connection)
        return connection

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    def check(self, transactions: int) -> None:
        """Each record is in the log, once, and each marker; the last of them may come later."""
        expected = transactions * (2 if self._form.is_transactional else 1)
        deadline = time.monotonic() + MARKERS_TIMEOUT_S
        with Client(self._target.address) as client:
            while (written := sum(client.end_offsets(self.topic).values())) != expected:
                if written > expected or time.monotonic() > deadline:
                    text = f"{transactions} transactions should make {expected} offsets"
                    raise RequestFailed(f"{text}, and there are {written}")
                time.sleep(0.02)
