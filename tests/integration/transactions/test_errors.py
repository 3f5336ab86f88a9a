"""Errors of transactions by version and worker; ids, topics and requests of unusual kinds."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.placement import leader_of, owner_of
from moldau.broker.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from moldau.broker.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from moldau.broker.wire.messages.end_txn import EndTxnRequest
from moldau.broker.wire.messages.find_coordinator import FindCoordinatorRequest
from moldau.broker.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.support.brokers.running import Broker, wait_until
from tests.support.raw.calls import create_topic, worker_clients
from tests.support.raw.client import RawClient, batches_in
from tests.support.raw.committed import await_stable, read_committed
from tests.support.raw.transactions import (
    V1,
    V2,
    ClientVersion,
    RawProducer,
    await_loaded,
    await_state,
    describe_transaction,
)

Producers = Callable[..., RawProducer]

CONCURRENT, RETRY = ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS
LOOKED_AT_S = 0.6  # the supervisor looks more often
LOADING, NOT_COORDINATOR = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR


@contextlib.contextmanager
def _stopped(pid: int) -> Iterator[None]:
    """The supervisor kills a worker that is stopped whenever it looks, for three seconds."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        time.sleep(LOOKED_AT_S)


def _owned_by(worker: int, prefix: str = "id") -> str:
    while owner_of(name := f"{prefix}-{uuid.uuid4().hex[:12]}", 2) != worker:
        pass
    return name


# --- whom they ask ---


def test_7_5_requests_to_the_wrong_worker(
    broker: Broker, producers: Producers, topic: str, new_id: str
) -> None:
    producer = producers().begin()
    me = (new_id, producer.producer_id, producer.epoch)
    group = _owned_by(0, "group")
    item = TxnOffsetCommitRequestTopic(topic, [TxnOffsetCommitRequestPartition(0, 1)])
    with worker_clients(broker) as clients:
        other = clients[1 - owner_of(new_id, 2)]
        wanted = [AddPartitionsToTxnTopic(topic, [0])]
        for version in range(4):
            answer = other.call(AddPartitionsToTxnRequest([], *me, wanted), version)
            (result,) = answer.results_by_topic_v3_and_below[0].results_by_partition
            assert result.partition_error_code == NOT_COORDINATOR
        for version in range(5):
            answer = other.call(AddOffsetsToTxnRequest(*me, group), version)
            assert answer.error_code == NOT_COORDINATOR
        for version in range(6):
            answer = other.call(EndTxnRequest(*me, True), version)
            assert answer.error_code == NOT_COORDINATOR
            answer = clients[1].call(TxnOffsetCommitRequest(new_id, group, *me[1:], topics=[item]))
            assert answer.topics[0].partitions[0].error_code == NOT_COORDINATOR


@pytest.mark.parametrize("version", [4, 5])
def test_7_6_transactions_of_several_coordinators_in_one_request(
    producers: Producers, router: RawClient, topic: str, version: int
) -> None:
    names = [_owned_by(0), _owned_by(1), _owned_by(0), _owned_by(1)]
    made = [producers(V1, name).begin() for name in names]
    wanted = [
        AddPartitionsToTxnTransaction(
            producer.transactional_id,
            producer.producer_id,
            producer.epoch + (number == 3),
            False,
            [AddPartitionsToTxnTopic(topic, [number, 3])],
        )
        for number, producer in enumerate(made)
    ]
    answer = router.call(AddPartitionsToTxnRequest(wanted), version)
    found = {
        result.transactional_id: {
            each.partition_index: each.partition_error_code
            for entry in result.topic_results
            for each in entry.results_by_partition
        }
        for result in answer.results_by_transaction
    }
    fenced = ErrorCode.PRODUCER_FENCED
    assert found == {
        names[0]: {0: 0, 3: 0},
        names[1]: {1: 0, 3: 0},
        names[2]: {2: 0, 3: 0},
        names[3]: {3: fenced},
    }
    for number, name in enumerate(names[:3]):
        (entry,) = describe_transaction(router, name).topics
        assert sorted(entry.partitions) == [number, 3]


def test_find_coordinator_of_a_transactional_id(broker: Broker, router: RawClient) -> None:
    ports = [entry["port"] for entry in broker.processes("worker")]
    for name in (_owned_by(0), _owned_by(1)):
        for version in range(1, 7):  # v0 knows groups only
            answer = router.call(FindCoordinatorRequest(name, 1, [name]), version)
            port = answer.port if version < 4 else answer.coordinators[0].port
            assert port == ports[owner_of(name, 2)]


# --- while somebody does not answer ---


def test_7_14_markers_that_take_longer(
    broker: Broker, producers: Producers, topic: str, client_version: ClientVersion
) -> None:
    """The leader of a partition hangs: what comes meanwhile is sent back, in each version's way."""
    name = _owned_by(0)
    mine, other = (
        next(each for each in range(4) if leader_of(topic, each, 2) == worker) for worker in (0, 1)
    )
    group = _owned_by(0, "group")
    producer = producers(client_version, name, direct=True).begin()
    producer.write(topic, b"a", partition=other)
    asked: list[tuple[Callable[[RawProducer], object], object]] = [
        (lambda at: at.send(topic, b"b", partition=mine, version=12).error_code, CONCURRENT),
        (lambda at: at.send(topic, b"b", partition=mine, version=11).error_code, RETRY),
        (lambda at: at.send(topic, b"b", partition=mine, version=9).error_code, RETRY),
        (lambda at: at.add(topic, mine), {mine: CONCURRENT}),
        (lambda at: at.add_offsets(group), CONCURRENT),
        (lambda at: at.commit_offset(group, topic, 1, version=3), CONCURRENT),
        (lambda at: at.commit_offset(group, topic, 1, version=5), CONCURRENT),
        (lambda at: at.init().error_code, CONCURRENT),
    ]
    twins = [producers(client_version, name, direct=True) for _ in asked]
    with ThreadPoolExecutor(len(asked)) as threads, _stopped(broker.pids("worker")[1]):
        producer.finish(commit=True)
        answers = [
            threads.submit(ask, producer.lend_to(twin))
            for twin, (ask, _) in zip(twins, asked, strict=True)
        ]
        assert [answer.result(60) for answer in answers] == [code for _, code in asked]
    with RawClient(broker.port) as client:
        await_state(client, name, "CompleteCommit")
        await_stable(client, topic, 2, other)
    producer.begin()
    producer.write(topic, b"b", partition=mine)
    producer.finish(commit=True)
    with RawClient(broker.port) as client:
        await_stable(client, topic, 2, mine)


def test_7_9_a_coordinator_that_does_not_answer(
    broker: Broker, producers: Producers, topic: str
) -> None:
    name, group = _owned_by(1), _owned_by(0, "group")
    partition = next(each for each in range(4) if leader_of(topic, each, 2) == 0)
    producer = producers(V2, name, direct=True).begin()

    def produced(at: RawProducer, version: int) -> int:
        return int(at.send(topic, b"x", partition=partition, version=version).error_code)

    def committed(at: RawProducer, version: int) -> int:
        return at.commit_offset(group, topic, 1, version=version)

    asked = [(produced, 11), (produced, 12), (committed, 1), (committed, 2), (committed, 5)]
    twins = [producer.lend_to(producers(V2, name, direct=True)) for _ in asked]
    with ThreadPoolExecutor(len(asked)) as threads, _stopped(broker.pids("worker")[1]):
        answers = [
            threads.submit(ask, at, version)
            for at, (ask, version) in zip(twins, asked, strict=True)
        ]
        codes = [answer.result(60) for answer in answers]
    assert codes == [RETRY, RETRY, ErrorCode.COORDINATOR_NOT_AVAILABLE, LOADING, LOADING]
    with RawClient(broker.port) as client:
        await_loaded(client)
        wait_until(  # the workers connect again
            lambda: producer.send(topic, b"x", partition=partition).error_code == 0, 30, "it joins"
        )
        producer.write_offset(group, topic, 1)
        producer.finish(commit=True)
        await_stable(client, topic, 2, partition)


# --- ids and topics of unusual kinds ---


@pytest.mark.parametrize("name", ["a:b~c{d}", "grüße-日本-🐟", " ", "x" * 3_000, "%00\x00"])
def test_any_text_is_an_id(
    broker: Broker, producers: Producers, router: RawClient, topic: str, name: str
) -> None:
    producer = producers(V2, name).begin()
    epoch = producer.epoch
    producer.write(topic, b"x")
    producer.finish(commit=True)
    await_stable(router, topic, 2)
    owner = owner_of(name, 2)
    old_pid = broker.kill("worker", owner)
    broker.wait_restarted("worker", owner, old_pid)
    again = producers(V2, name).begin()
    assert (again.producer_id, again.epoch) == (producer.producer_id, epoch + 2)


@pytest.mark.parametrize(
    "configs",
    [{"compression.type": "gzip"}, {"message.timestamp.type": "LogAppendTime"}],
    ids=["recompressed", "append time"],
)
def test_7_12_batches_that_the_topic_changes(
    producers: Producers, router: RawClient, client_version: ClientVersion, configs: dict[str, str]
) -> None:
    topic = f"changed-{uuid.uuid4().hex[:12]}"
    create_topic(router, topic, configs)
    producer = producers(client_version).begin()
    for value, commit in ((b"lost" * 99, False), (b"kept" * 99, True), (b"lost" * 99, False)):
        producer.write(topic, value)
        assert batches_in(router.fetch(topic, 0))
        producer.finish(commit=commit)
    await_stable(router, topic, 6)
    assert read_committed(router, topic) == [b"kept" * 99]
