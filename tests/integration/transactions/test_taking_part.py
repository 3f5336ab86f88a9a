"""How partitions get into a transaction, and which batches are refused: 7.6 to 7.11."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.placement import leader_of, owner_of
from moldau.broker.wire.messages.add_partitions_to_txn import AddPartitionsToTxnTopic
from moldau.broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tests.support.brokers.running import Broker
from tests.support.raw.client import RawClient, batches_in, make_batch
from tests.support.raw.committed import await_stable, fetch_committed, read_committed
from tests.support.raw.transactions import (
    V1,
    V2,
    ClientVersion,
    RawProducer,
    await_state,
    describe_transaction,
    produce_request,
)

Producers = Callable[..., RawProducer]

UNKNOWN, NOT_ATTEMPTED = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED
ABORTABLE, WRONG_STATE = ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE
OLD_EPOCH = ErrorCode.INVALID_PRODUCER_EPOCH
UNKNOWN_ID = ErrorCode.INVALID_PRODUCER_ID_MAPPING


def _places(client: RawClient, transactional_id: str) -> dict[str, list[int]]:
    state = describe_transaction(client, transactional_id)
    return {entry.topic: sorted(entry.partitions) for entry in state.topics}


# 7.6


@pytest.mark.parametrize("version", range(6))
def test_7_6_one_unknown_partition_and_none_is_added(
    producers: Producers, router: RawClient, topic: str, new_id: str, version: int, direct: bool
) -> None:
    producer = producers(V1, direct=direct).begin()
    wanted = [AddPartitionsToTxnTopic(topic, [0, 9, 1]), AddPartitionsToTxnTopic("missing", [0])]
    assert producer.add_all(wanted, version=version) == {
        (topic, 0): NOT_ATTEMPTED,
        (topic, 1): NOT_ATTEMPTED,
        (topic, 9): UNKNOWN,
        ("missing", 0): UNKNOWN,
    }
    assert describe_transaction(router, new_id).transaction_state == "Empty"
    good = [AddPartitionsToTxnTopic(topic, [1, 0])]
    assert producer.add_all(good, version=version) == {(topic, 0): 0, (topic, 1): 0}
    assert _places(router, new_id) == {topic: [0, 1]}


@pytest.mark.parametrize("version", [4, 5])
def test_7_6_a_look_adds_nothing(
    producers: Producers, router: RawClient, topic: str, new_id: str, version: int
) -> None:
    producer = producers(V1).begin()
    assert producer.add(topic, 1) == {1: 0}
    wanted = [AddPartitionsToTxnTopic(topic, [0, 1])]
    assert producer.add_all(wanted, version=version, verify_only=True) == {
        (topic, 0): ABORTABLE,
        (topic, 1): 0,
    }
    assert _places(router, new_id) == {topic: [1]}


# 7.7


@pytest.mark.parametrize("version", [3, 7, 10, 11])
def test_7_7_a_batch_to_a_partition_that_was_not_added(
    producers: Producers, router: RawClient, topic: str, version: int, direct: bool
) -> None:
    producer = producers(V1, direct=direct).begin()
    expected = ABORTABLE if version >= 11 else WRONG_STATE
    for worker in (0, 1):
        for partition in range(4):
            answer = producer.send(topic, b"x", partition=partition, version=version, worker=worker)
            assert answer.error_code == expected
    # In a transaction that has other partitions as well.
    producer.write(topic, b"x", partition=1)
    assert producer.send(topic, b"x", partition=2, version=version).error_code == expected
    producer.finish(commit=True)
    await_stable(router, topic, 2, 1)
    await_stable(router, topic, 0, 2)


def test_7_7_from_v12_on_it_is_added(
    producers: Producers, router: RawClient, topic: str, new_id: str, direct: bool
) -> None:
    producer = producers(V2, direct=direct).begin()
    for partition in range(4):
        for worker in (0, 1):  # whoever gets it
            assert producer.send(topic, b"x", partition=partition, worker=worker).error_code == 0
        assert _places(router, new_id) == {topic: list(range(partition + 1))}
    assert describe_transaction(router, new_id).transaction_state == "Ongoing"
    producer.finish(commit=True)
    for partition in range(4):
        await_stable(router, topic, 3, partition)
        assert len(read_committed(router, topic, partition=partition)) == 2


def test_7_7_v13_names_topics_by_id(
    producers: Producers, router: RawClient, topic: str, new_id: str
) -> None:
    (known,) = router.call(MetadataRequest([MetadataRequestTopic(name=topic)])).topics
    producer = producers(V2).begin()
    items = [
        PartitionProduceData(partition, memoryview(producer.batch(b"x"))) for partition in (0, 3)
    ]
    request = ProduceRequest(
        transactional_id=new_id,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[TopicProduceData(topic_id=known.topic_id, partition_data=items)],
    )
    answers = router.call(request, 13).responses
    codes = [item.error_code for entry in answers for item in entry.partition_responses]
    assert codes == [0, 0]
    assert _places(router, new_id) == {topic: [0, 3]}


@pytest.mark.parametrize("version", [9, 11, 12])
def test_7_7_another_producer_id_or_an_unknown_transactional_id(
    producers: Producers, topic: str, version: int, direct: bool
) -> None:
    stranger = producers(V2, direct=direct)
    stranger.producer_id, stranger.epoch = 999_999, 0
    for known in (False, True):
        if known:
            producers(V2, direct=direct).begin()
        for worker in (0, 1):
            assert stranger.send(topic, version=version, worker=worker).error_code == UNKNOWN_ID


# 7.8


@pytest.mark.parametrize("commit", [True, False])
def test_7_8_a_batch_that_comes_after_its_marker(
    producers: Producers,
    router: RawClient,
    topic: str,
    new_id: str,
    client_version: ClientVersion,
    commit: bool,
    direct: bool,
) -> None:
    """It was delayed on its way. Of a v1 client the epoch is still the same."""
    producer = producers(client_version, direct=direct).begin()
    producer.write(topic, b"in time")
    late = producer.batch(b"late", sequence=1)
    producer.finish(commit=commit)
    await_state(router, new_id, "CompleteCommit" if commit else "CompleteAbort")
    await_stable(router, topic, 2)
    for worker in (0, 1):
        for version in (9, 11) if client_version is V1 else (11, 12):
            answer = producer.send(topic, batch=late, worker=worker, version=version, sequence=1)
            if client_version is V2:
                assert answer.error_code == OLD_EPOCH
            else:
                assert answer.error_code == (ABORTABLE if version >= 11 else WRONG_STATE)
    await_stable(router, topic, 2)
    producer.write(topic, b"next")
    producer.finish(commit=True)
    await_stable(router, topic, 4)
    assert read_committed(router, topic) == ([b"in time"] if commit else []) + [b"next"]


# 7.9


def _pipelined(
    producer: RawProducer, topic: str, partition: int, count: int, worker: int
) -> list[tuple[int, int]]:
    """Send so many batches without waiting; error and offset of each."""
    client = producer.by_worker[worker]
    for number in range(count):
        batch = producer.batch(b"%d" % number, sequence=number)
        request = produce_request(topic, partition, batch, producer.transactional_id)
        client.send(request, producer.client.produce)
    answers = [client.receive().responses[0].partition_responses[0] for _ in range(count)]
    return [(answer.error_code, answer.base_offset) for answer in answers]


def test_7_9_five_batches_in_flight_arrive_in_order(
    producers: Producers,
    router: RawClient,
    topic: str,
    client_version: ClientVersion,
    direct: bool,
) -> None:
    producer = producers(client_version, direct=direct).begin()
    if client_version is V1:
        producer.add(topic, 0, 1, 2, 3)
    for partition in range(4):
        worker = partition % 2
        in_order = [(0, number) for number in range(5)]
        assert _pipelined(producer, topic, partition, 5, worker) == in_order
    producer.finish(commit=True)
    for partition in range(4):
        await_stable(router, topic, 6, partition)
        values = [b"%d" % number for number in range(5)]
        assert read_committed(router, topic, partition=partition) == values


@contextlib.contextmanager
def _stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):  # stopped for too long: it was replaced
            os.kill(pid, signal.SIGCONT)


def test_7_9_others_are_not_held_up_while_the_coordinator_is_unreachable(
    broker: Broker, producers: Producers, router: RawClient, topic: str, new_id: str
) -> None:
    owner = owner_of(new_id, 2)
    partition = next(each for each in range(4) if leader_of(topic, each, 2) != owner)
    waiting = producers(V2, direct=True).begin()
    leader = waiting.by_worker[1 - owner]
    with _stopped(broker.pids("worker")[owner]):
        batch = waiting.batch(b"waits")
        leader.send(produce_request(topic, partition, batch, new_id), V2.produce)
        with RawClient(broker.processes("worker")[1 - owner]["port"]) as other:
            for number in range(20):
                plain = make_batch([(None, b"%d" % number, 1)])
                answer = other.produce(topic, plain, partition=partition)
                assert (answer.error_code, answer.base_offset) == (0, number)
    (answer,) = leader.receive().responses[0].partition_responses
    # It was answered meanwhile, or the coordinator is back in time.
    assert answer.error_code in (0, ErrorCode.NOT_ENOUGH_REPLICAS)
    if answer.error_code:
        waiting.write(topic, b"waits", partition=partition)
    waiting.finish(commit=True)
    await_state(router, new_id, "CompleteCommit")
    await_stable(router, topic, 22, partition)
    assert read_committed(router, topic, partition=partition)[-1] == b"waits"


# 7.10


def test_7_10_a_plain_batch_of_a_producer_with_an_open_transaction(
    producers: Producers, router: RawClient, topic: str, client_version: ClientVersion, direct: bool
) -> None:
    producer = producers(client_version, direct=direct).begin()
    producer.write(topic, b"a")
    plain = producer.batch(b"b", sequence=1, plain=True)
    for worker in (0, 1):
        for transactional_id in ("", None):
            answer = producer.send(
                topic, batch=plain, sequence=1, worker=worker, transactional_id=transactional_id
            )
            assert answer.error_code == WRONG_STATE
    producer.finish(commit=True)
    await_stable(router, topic, 2)


@pytest.mark.parametrize("version", [3, 9, 11, 12])
def test_7_10_transactional_without_a_transactional_id(
    producers: Producers, topic: str, version: int, direct: bool
) -> None:
    producer = producers(direct=direct).begin()
    answer = producer.send(topic, version=version, transactional_id=None)
    assert answer.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_7_10_v12_and_an_unknown_producer_begin_with_sequence_0(
    producers: Producers, router: RawClient, topic: str, new_id: str, direct: bool
) -> None:
    producer = producers(V2, direct=direct).begin()
    out_of_order = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    for worker in (0, 1):
        assert producer.send(topic, sequence=3, worker=worker).error_code == out_of_order
    producer.write(topic, b"a")
    producer.finish(commit=True)
    await_stable(router, topic, 2)
    assert read_committed(router, topic) == [b"a"]


# 7.11


def test_7_11_a_batch_retried_inside_its_transaction(
    producers: Producers, router: RawClient, topic: str, client_version: ClientVersion, direct: bool
) -> None:
    producer = producers(client_version, direct=direct).begin()
    producer.write(topic, b"a", b"b")
    producer.write(topic, b"c")
    for worker in (0, 1):
        first = producer.send(topic, b"a", b"b", sequence=0, worker=worker)
        assert (first.error_code, first.base_offset) == (0, 0)
        second = producer.send(topic, b"c", sequence=2, worker=worker)
        assert (second.error_code, second.base_offset) == (0, 2)
    assert not batches_in(fetch_committed(router, topic, 0))
    producer.finish(commit=True)
    await_stable(router, topic, 4)
    assert read_committed(router, topic) == [b"a", b"b", b"c"]
