"""EndTxn: what readers get, what it answers again, timeouts, topics that go: 7.12 to 7.18."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.txn.transaction_data import TxnConfig
from moldau.broker.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.integration.transactions.txn_records import restart_with_record
from tests.support.brokers.running import Broker, wait_until
from tests.support.raw.calls import LATEST, create_topic, list_offset, read_all, worker_clients
from tests.support.raw.client import RawClient
from tests.support.raw.committed import READ_COMMITTED, await_stable, markers, read_committed
from tests.support.raw.transactions import (
    V1,
    V2,
    ClientVersion,
    RawProducer,
    await_state,
    describe_transaction,
    open_transactions,
)

Producers = Callable[..., RawProducer]

FENCED, WRONG_STATE = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE
TIMEOUT_MS = 700
WAITS_S = TxnConfig().wait_for_markers_ms / 1000 - 0.01  # clocks are coarse


# 7.12


def test_7_12_all_of_it_after_a_commit_and_nothing_after_an_abort(
    broker: Broker,
    producers: Producers,
    router: RawClient,
    topic: str,
    client_version: ClientVersion,
    direct: bool,
) -> None:
    producer = producers(client_version, direct=direct).begin()
    committed: dict[int, list[bytes]] = {partition: [] for partition in range(4)}
    for number in range(9):
        for partition in range(4):
            values = [b"%d-%d" % (number, each) for each in range(1 + partition)]
            producer.write(topic, *values, partition=partition)
            if number % 3 != 1:
                committed[partition] += values
        producer.finish(commit=number % 3 != 1)
    for partition in range(4):
        await_stable(router, topic, 9 * (partition + 2), partition)
    with worker_clients(broker) as clients:
        for client in clients:
            for partition in range(4):
                for max_bytes in (1, 1 << 20):
                    found = read_committed(client, topic, partition=partition, max_bytes=max_bytes)
                    assert found == committed[partition]
                both = [
                    record
                    for record in read_all(client, topic, partition=partition)
                    if record.key == b"key"
                ]
                assert len(both) == 9 * (1 + partition)
                assert len(markers(client, topic, partition)) == 9


def test_7_12_a_marker_takes_one_offset(
    producers: Producers, router: RawClient, topic: str, client_version: ClientVersion
) -> None:
    producer = producers(client_version).begin()
    producer.write(topic, b"lost")
    producer.finish(commit=False)
    await_stable(router, topic, 2)
    for level in (0, READ_COMMITTED):
        assert list_offset(router, topic, LATEST, isolation_level=level).offset == 2
    assert markers(router, topic) == [(1, False)]
    assert read_committed(router, topic) == []


@pytest.mark.parametrize("version", range(6))
def test_7_12_every_version_ends(
    producers: Producers, router: RawClient, topic: str, version: int
) -> None:
    producer = producers(V1).begin()
    producer.write(topic, b"kept")
    assert producer.end(commit=True, version=version).error_code == 0
    await_stable(router, topic, 2)
    producer.write(topic, b"lost")
    assert producer.end(commit=False, version=version).error_code == 0
    await_stable(router, topic, 4)
    assert read_committed(router, topic) == [b"kept"]


# 7.13


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("commit", [True, False])
def test_7_13_below_v5_the_same_end_again(
    producers: Producers,
    router: RawClient,
    topic: str,
    new_id: str,
    version: int,
    commit: bool,
    direct: bool,
) -> None:
    producer = producers(V1, direct=direct).begin()
    for kind in (True, False):
        assert producer.end(commit=kind, version=version).error_code == WRONG_STATE, "Empty"
    producer.write(topic, b"x")
    producer.finish(commit=commit)
    # Whether its markers are still on their way or not.
    for _ in range(3):
        assert producer.end(commit=commit, version=version).error_code == 0
        assert producer.end(commit=not commit, version=version).error_code == WRONG_STATE
        await_state(router, new_id, "CompleteCommit" if commit else "CompleteAbort")
    assert producer.epoch == 0
    await_stable(router, topic, 2)
    assert markers(router, topic) == [(1, commit)]


@pytest.mark.parametrize("commit", [True, False])
def test_7_13_v5_again_with_the_previous_epoch(
    producers: Producers,
    router: RawClient,
    topic: str,
    new_id: str,
    commit: bool,
    direct: bool,
) -> None:
    producer = producers(V2, direct=direct).begin()
    producer.write(topic, b"x")
    producer.finish(commit=commit)
    assert producer.epoch == 1
    for _ in range(3):
        answer = producer.end(commit=commit, epoch=0)
        assert (answer.error_code, answer.producer_epoch) == (0, 1)
        assert answer.producer_id == producer.producer_id
        assert producer.end(commit=not commit, epoch=0).error_code == WRONG_STATE
        await_state(router, new_id, "CompleteCommit" if commit else "CompleteAbort")
    await_stable(router, topic, 2)
    assert markers(router, topic) == [(1, commit)]


def test_7_13_v5_of_nothing(
    producers: Producers, router: RawClient, new_id: str, direct: bool
) -> None:
    producer = producers(V2, direct=direct).begin()
    for epoch in (1, 2, 3):
        assert producer.end(commit=True).error_code == WRONG_STATE
        answer = producer.end(commit=False)
        assert (answer.error_code, answer.producer_epoch) == (0, epoch)
    assert await_state(router, new_id, "CompleteAbort").producer_epoch == 3


def test_7_13_an_id_that_is_unknown(producers: Producers, direct: bool) -> None:
    producer = producers(direct=direct)
    producer.producer_id, producer.epoch = 5, 0
    for version in range(6):
        code = producer.end(commit=True, version=version).error_code
        assert code == ErrorCode.INVALID_PRODUCER_ID_MAPPING


# 7.14


def _ask_again(producer: RawProducer, topic: str, partition: int, value: bytes) -> int:
    """Write the first batch of a transaction, as often as it takes; returns how often it was
    refused because the previous transaction was still being ended. Each refusal has waited."""
    refused = 0
    while True:
        began = time.monotonic()
        if producer.client.adds:
            code = producer.add(topic, partition)[partition]
        else:
            code = producer.send(topic, value, partition=partition).error_code
        if code != ErrorCode.CONCURRENT_TRANSACTIONS:
            break
        assert time.monotonic() - began >= WAITS_S
        refused += 1
    assert code == 0
    if producer.client.adds:
        assert producer.send(topic, value, partition=partition).error_code == 0
    return refused


def test_7_14_the_next_transaction_begins_at_once(
    producers: Producers,
    router: RawClient,
    topic: str,
    client_version: ClientVersion,
    direct: bool,
) -> None:
    """A client hears CONCURRENT_TRANSACTIONS only where the markers took longer than a request
    waits for them, as on a machine that is short of processors, and seldom."""
    producer = producers(client_version, direct=direct).begin()
    rounds, overtaken = 160, 0
    for number in range(rounds):
        partitions = (number % 4, (number + 1) % 4)
        overtaken += _ask_again(producer, topic, partitions[0], b"%d" % number)
        producer.write(topic, b"%d" % number, partition=partitions[1])
        producer.finish(commit=number % 5 != 0)
    assert overtaken <= rounds // 10
    values = []
    for partition in range(4):
        await_stable(router, topic, rounds, partition)
        values += read_committed(router, topic, partition=partition)
    expected = [b"%d" % number for number in range(rounds) if number % 5] * 2
    assert sorted(map(bytes, filter(None, values))) == sorted(expected)


def test_7_14_another_producer_of_the_id_begins_at_once(
    producers: Producers, topic: str, client_version: ClientVersion, direct: bool
) -> None:
    producer = producers(client_version, direct=direct)
    for _ in range(30):
        answer = producer.init()
        assert answer.error_code == 0
        producer.write(topic, b"open")  # which the next one aborts


# 7.17


def _timed_out(router: RawClient, topic: str, transactional_id: str) -> None:
    state = await_state(router, transactional_id, "CompleteAbort")
    assert not state.topics
    await_stable(router, topic, 2)
    assert markers(router, topic) == [(1, False)]
    assert open_transactions(router, topic) == {}


def test_7_17_a_transaction_over_its_timeout_is_aborted(
    producers: Producers,
    router: RawClient,
    topic: str,
    new_id: str,
    client_version: ClientVersion,
    direct: bool,
) -> None:
    producer = producers(client_version, direct=direct).begin(TIMEOUT_MS)
    producer.write(topic, b"late")
    assert describe_transaction(router, new_id).transaction_state == "Ongoing"
    _timed_out(router, topic, new_id)
    assert read_committed(router, topic) == []
    code = producer.send(topic, b"later", sequence=1).error_code
    assert code == ErrorCode.INVALID_PRODUCER_EPOCH
    if client_version is V1:
        for version in range(5):
            expected = FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
            for commit in (True, False):
                assert producer.end(commit=commit, version=version).error_code == expected
        assert producer.add(topic, 0) == {0: FENCED}
    else:
        assert producer.end(commit=True).error_code == WRONG_STATE
        answer = producer.end(commit=False)
        assert (answer.error_code, answer.producer_epoch) == (0, 1)
        producer.write(topic, b"next")
        producer.finish(commit=True)
        await_stable(router, topic, 4)
        assert read_committed(router, topic) == [b"next"]


def test_7_17_its_producer_goes_on_with_init_producer_id(
    producers: Producers, router: RawClient, topic: str, new_id: str, client_version: ClientVersion
) -> None:
    producer = producers(client_version).begin(TIMEOUT_MS)
    producer.write(topic, b"late")
    _timed_out(router, topic, new_id)
    answer = producer.init(producer_id=producer.producer_id, epoch=0)
    assert (answer.error_code, answer.producer_epoch) == (0, 1)
    producer.write(topic, b"next")
    producer.finish(commit=True)
    await_stable(router, topic, 4)
    assert read_committed(router, topic) == [b"next"]


@pytest.mark.parametrize("left_ms", [-1_000, 2_000])
def test_7_17_the_deadline_survives_a_restart(
    broker: Broker, producers: Producers, topic: str, new_id: str, left_ms: int
) -> None:
    """It passed while the coordinator was down, or is near: far less than the timeout is left."""
    timeout_ms = 120_000
    producer = producers(V2, direct=True).begin(timeout_ms)
    producer.write(topic, b"late")
    deadline_ms = int(time.time() * 1000) + left_ms
    restart_with_record(broker, new_id, started_ms=deadline_ms - timeout_ms)
    with RawClient(broker.port) as client:
        _timed_out(client, topic, new_id)
        assert describe_transaction(client, new_id).producer_epoch == 1
    assert time.time() * 1000 >= deadline_ms


# 7.18


def _delete(client: RawClient, topic: str) -> None:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)], timeout_ms=10_000)
    assert client.call(request).responses[0].error_code == 0


def _is_known(client: RawClient, topic: str) -> bool:
    request = MetadataRequest([MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    return bool(client.call(request).topics[0].error_code == 0)


def _await_known(client: RawClient, topic: str, *, is_known: bool) -> None:
    wait_until(lambda: _is_known(client, topic) is is_known, 30, f"{topic}: {is_known}")


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("is_created_again", [True, False])
def test_7_18_a_topic_deleted_during_a_transaction(
    broker: Broker,
    producers: Producers,
    router: RawClient,
    topic: str,
    new_id: str,
    client_version: ClientVersion,
    commit: bool,
    is_created_again: bool,
) -> None:
    gone = f"gone-{uuid.uuid4().hex[:12]}"
    create_topic(router, gone, partitions=4)
    producer = producers(client_version).begin()
    producer.write(topic, b"stays")
    for partition in range(4):
        producer.write(gone, b"goes", partition=partition)
    _delete(router, gone)
    if is_created_again:
        create_topic(router, gone, partitions=4)
    producer.finish(commit=commit)
    await_state(router, new_id, "CompleteCommit" if commit else "CompleteAbort")
    await_stable(router, topic, 2)
    with worker_clients(broker) as clients:
        for client in clients:
            if not is_created_again:
                _await_known(client, gone, is_known=False)
                continue
            _await_known(client, gone, is_known=True)
            for partition in range(4):
                assert list_offset(client, gone, LATEST, partition=partition).offset == 0
    # The producer goes on, in the new topic too.
    producer.write(topic, b"next")
    if is_created_again:
        producer.write(gone, b"new", partition=1)
    producer.finish(commit=True)
    await_stable(router, topic, 4)
    if is_created_again:
        await_stable(router, gone, 2, 1)
        assert read_committed(router, gone, partition=1) == [b"new"]
