"""A transactional producer with Moldau's own codecs, in any version.

    with RawProducer(broker, "id", V2) as producer:
        producer.begin()                          # InitProducerId
        producer.write(topic, b"a", b"b")         # v1: AddPartitionsToTxn before the first
        producer.finish(commit=True)

For what real clients hide: error codes by version, batches that come late, the answer of a worker
that does not lead. `begin`, `write` and `finish` have to succeed; `init`, `add`, `send` and `end`
return whatever is answered.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Self

from moldau.broker.placement import leader_of, owner_of
from moldau.broker.wire.batch import TRANSACTIONAL
from moldau.broker.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from moldau.broker.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from moldau.broker.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from moldau.broker.wire.messages.describe_transactions import DescribeTransactionsRequest
from moldau.broker.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from moldau.broker.wire.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from moldau.broker.wire.messages.list_transactions import ListTransactionsRequest
from moldau.broker.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from moldau.broker.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from moldau.broker.wire.records import Record, build_batch
from tests.support.brokers.running import Broker, wait_until
from tests.support.raw.client import RawClient

NOT_READY = (14, 15, 16)  # the coordinator is loading, unavailable, another one


class ClientVersion(NamedTuple):
    """The versions a client of one transaction version sends."""

    name: str
    produce: int
    end_txn: int
    txn_offset_commit: int
    adds: bool
    """It sends AddPartitionsToTxn and AddOffsetsToTxn before it produces and commits."""


V1 = ClientVersion("v1", 11, 4, 4, adds=True)
V2 = ClientVersion("v2", 12, 5, 5, adds=False)


class RawProducer:
    """One producer, through the router or on the workers' own ports."""

    def __init__(
        self,
        broker: Broker,
        transactional_id: str,
        client: ClientVersion = V2,
        *,
        direct: bool = False,
    ) -> None:
        self.transactional_id = transactional_id
        self.client = client
        self.producer_id, self.epoch = -1, -1
        self._stack = contextlib.ExitStack()
        entries = broker.processes("worker")
        self._workers = len(entries)
        router = None if direct else self._stack.enter_context(RawClient(broker.port))
        self.by_worker = [
            router or self._stack.enter_context(RawClient(entry["port"])) for entry in entries
        ]
        self.coordinator = self.by_worker[owner_of(transactional_id, self._workers)]
        self._sequences: dict[tuple[str, int], int] = {}
        self._added: set[object] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # --- what has to succeed ---

    def begin(self, timeout_ms: int = 60_000) -> Self:
        """The identity of a new process; patient with a coordinator that loads."""
        _once_ready(lambda: self.init(timeout_ms))
        return self

    def write(self, topic: str, *values: bytes, partition: int = 0) -> int:
        """The first offset."""
        if self.client.adds and (topic, partition) not in self._added:
            assert self.add(topic, partition) == {partition: 0}
            self._added.add((topic, partition))
        answer = self.send(topic, *values, partition=partition)
        assert answer.error_code == 0, answer
        return int(answer.base_offset)

    def write_offset(self, group: str, topic: str, offset: int, **options: Any) -> None:
        if self.client.adds and group not in self._added:
            assert self.add_offsets(group) == 0
            self._added.add(group)
        assert self.commit_offset(group, topic, offset, **options) == 0

    def finish(self, *, commit: bool) -> None:
        _once_ready(lambda: self.end(commit=commit))

    # --- single requests ---

    def init(
        self,
        timeout_ms: int = 60_000,
        *,
        producer_id: int = -1,
        epoch: int = -1,
        version: int | None = None,
    ) -> InitProducerIdResponse:
        request = InitProducerIdRequest(self.transactional_id, timeout_ms, producer_id, epoch)
        answer: InitProducerIdResponse = self.coordinator.call(request, version)
        if answer.error_code == 0:
            self._added.clear()
            self._go_on_as(answer.producer_id, answer.producer_epoch)
        return answer

    def add(self, topic: str, *partitions: int, version: int = 3) -> dict[int, int]:
        """The codes of the partitions."""
        topics = [AddPartitionsToTxnTopic(topic, list(partitions))]
        return {index: code for (_, index), code in self.add_all(topics, version=version).items()}

    def add_all(
        self, topics: list[AddPartitionsToTxnTopic], *, version: int = 3, verify_only: bool = False
    ) -> dict[tuple[str, int], int]:
        me = (self.transactional_id, self.producer_id, self.epoch)
        if version < 4:
            answer = self.coordinator.call(AddPartitionsToTxnRequest([], *me, topics), version)
            results = answer.results_by_topic_v3_and_below
        else:
            one = AddPartitionsToTxnTransaction(*me, verify_only, topics)
            answer = self.coordinator.call(AddPartitionsToTxnRequest([one]), version)
            assert answer.error_code == 0
            (of_one,) = answer.results_by_transaction
            assert of_one.transactional_id == self.transactional_id
            results = of_one.topic_results
        return {
            (topic.name, each.partition_index): each.partition_error_code
            for topic in results
            for each in topic.results_by_partition
        }

    def send(
        self,
        topic: str,
        *values: bytes,
        partition: int = 0,
        sequence: int | None = None,
        worker: int | None = None,
        version: int | None = None,
        batch: bytearray | None = None,
        transactional_id: str | None = "",
    ) -> PartitionProduceResponse:
        """One batch, through the leader unless a worker is named."""
        at = self._sequences.get((topic, partition), 0)
        if batch is None:
            batch = self.batch(*values, sequence=at if sequence is None else sequence)
        if worker is None:
            worker = leader_of(topic, partition, self._workers)
        request = produce_request(
            topic, partition, batch, self.transactional_id if transactional_id == "" else None
        )
        chosen = self.client.produce if version is None else version
        (answer,) = self.by_worker[worker].call(request, chosen).responses[0].partition_responses
        made: PartitionProduceResponse = answer
        if made.error_code == 0 and sequence is None:
            self._sequences[topic, partition] = at + len(values)
        return made

    def batch(self, *values: bytes, sequence: int = 0, plain: bool = False) -> bytearray:
        return batch_of(
            *values,
            producer_id=self.producer_id,
            epoch=self.epoch,
            sequence=sequence,
            plain=plain,
        )

    def add_offsets(self, group: str, version: int | None = None) -> int:
        request = AddOffsetsToTxnRequest(self.transactional_id, self.producer_id, self.epoch, group)
        return int(self.coordinator.call(request, version).error_code)

    def commit_offset(
        self,
        group: str,
        topic: str,
        offset: int,
        *,
        partition: int = 0,
        generation: int = -1,
        member: str = "",
        instance: str | None = None,
        version: int | None = None,
    ) -> int:
        """TxnOffsetCommit: the partition's code."""
        item = TxnOffsetCommitRequestPartition(partition, offset)
        request = TxnOffsetCommitRequest(
            self.transactional_id,
            group,
            self.producer_id,
            self.epoch,
            generation,
            member,
            instance,
            [TxnOffsetCommitRequestTopic(topic, [item])],
        )
        owner = self.by_worker[owner_of(group, self._workers)]
        chosen = self.client.txn_offset_commit if version is None else version
        answer = owner.call(request, chosen)
        return int(answer.topics[0].partitions[0].error_code)

    def end(
        self, *, commit: bool, epoch: int | None = None, version: int | None = None
    ) -> EndTxnResponse:
        """EndTxn; with the answer the producer goes on."""
        chosen = self.client.end_txn if version is None else version
        given = self.epoch if epoch is None else epoch
        request = EndTxnRequest(self.transactional_id, self.producer_id, given, commit)
        answer: EndTxnResponse = self.coordinator.call(request, chosen)
        if answer.error_code == 0:
            self._added.clear()
            if chosen >= V2.end_txn:
                self._go_on_as(answer.producer_id, answer.producer_epoch)
        return answer

    def lend_to(self, other: RawProducer) -> RawProducer:
        """The same producer on other connections, where none waits for another's answer."""
        other.producer_id, other.epoch = self.producer_id, self.epoch
        return other

    def _go_on_as(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            self._sequences.clear()  # a new epoch begins with sequence 0
        self.producer_id, self.epoch = producer_id, epoch


def _once_ready(ask: Callable[[], Any]) -> None:
    """What is asked again while the coordinator is not ready has to succeed then."""
    answers: list[Any] = []

    def is_answered() -> bool:
        answers[:] = [ask()]
        return answers[0].error_code not in NOT_READY

    wait_until(is_answered, 60, "the coordinator is loaded")
    assert answers[0].error_code == 0, answers[0]


def batch_of(
    *values: bytes,
    producer_id: int,
    epoch: int,
    sequence: int = 0,
    plain: bool = False,
    timestamp: int | None = None,
) -> bytearray:
    at = int(time.time() * 1000) if timestamp is None else timestamp
    records = [Record(delta, at, b"key", value) for delta, value in enumerate(values or [b"value"])]
    return build_batch(
        records,
        base_offset=0,
        last_offset=len(records) - 1,
        attributes=0 if plain else TRANSACTIONAL,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def produce_request(
    topic: str, partition: int, batch: bytearray, transactional_id: str | None
) -> ProduceRequest:
    item = PartitionProduceData(partition, memoryview(batch))
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[TopicProduceData(name=topic, partition_data=[item])],
    )


# --- looking ---


def await_loaded(client: RawClient) -> None:
    """Wait until every coordinator knows its transactional ids."""
    wait_until(
        lambda: client.call(ListTransactionsRequest()).error_code == 0,
        60,
        "transactions are loaded",
    )


def describe_transaction(client: RawClient, transactional_id: str) -> Any:
    (state,) = client.call(DescribeTransactionsRequest([transactional_id])).transaction_states
    assert state.transactional_id == transactional_id
    return state


def await_state(client: RawClient, transactional_id: str, state: str) -> Any:
    """Wait until a transaction is in a state; how it is described then."""
    found: list[Any] = []

    def is_there() -> bool:
        found[:] = [describe_transaction(client, transactional_id)]
        return bool(found[0].transaction_state == state)

    wait_until(is_there, 60, f"{transactional_id} is {state}")
    return found[0]


def open_transactions(client: RawClient, topic: str, partition: int = 0) -> dict[int, int]:
    """First offset of what is open in a partition, by producer id."""
    request = DescribeProducersRequest([TopicRequest(topic, [partition])])
    (answer,) = client.call(request).topics[0].partitions
    assert answer.error_code == 0, answer
    return {
        each.producer_id: each.current_txn_start_offset
        for each in answer.active_producers
        if each.current_txn_start_offset >= 0
    }
