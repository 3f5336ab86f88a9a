"""InitProducerId on the wire, and what a producer that was replaced may still do: 7.1 to 7.5."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.placement import owner_of
from moldau.broker.txn.record import LAST_EPOCH
from moldau.broker.wire.messages.init_producer_id import InitProducerIdRequest
from tests.integration.transactions.txn_records import restart_with_record
from tests.support.brokers.running import Broker
from tests.support.raw.calls import worker_clients
from tests.support.raw.client import RawClient
from tests.support.raw.committed import await_stable, read_committed
from tests.support.raw.transactions import (
    V1,
    V2,
    ClientVersion,
    RawProducer,
    await_state,
    describe_transaction,
)

Producers = Callable[..., RawProducer]

FENCED, OLD_EPOCH = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH
INVALID_REQUEST = ErrorCode.INVALID_REQUEST


def test_7_1_the_same_producer_id_and_the_next_epoch(
    producers: Producers, client_version: ClientVersion, direct: bool
) -> None:
    first = producers(client_version, direct=direct).begin()
    assert first.epoch == 0
    for epoch in (1, 2):
        later = producers(client_version, direct=direct).begin()
        assert (later.producer_id, later.epoch) == (first.producer_id, epoch)


@pytest.mark.parametrize("version", range(6))
def test_7_1_every_version_begins(producers: Producers, version: int) -> None:
    producer = producers()
    producer.begin()
    answer = producer.init(version=version)
    assert (answer.error_code, answer.producer_epoch) == (0, 1)


def test_7_1_of_two_producers_with_one_id_the_older_one_is_fenced(
    producers: Producers, topic: str, client_version: ClientVersion, direct: bool
) -> None:
    older = producers(client_version, direct=direct).begin()
    newer = producers(client_version, direct=direct).begin()
    newer.write(topic, b"newer")
    for version in (9, 11, 12):
        for worker in (0, 1):
            answer = older.send(topic, b"older", version=version, worker=worker)
            assert answer.error_code == OLD_EPOCH
    for version in range(4):
        assert older.add(topic, 0, version=version) == {0: FENCED if version >= 2 else OLD_EPOCH}
    for version in range(6):
        code = older.end(commit=True, version=version).error_code
        assert code == (FENCED if version >= 2 else OLD_EPOCH)
    for version in range(5):
        code = older.add_offsets("group", version=version)
        assert code == (FENCED if version >= 2 else OLD_EPOCH)
    for version in (3, 4, 5):
        assert older.commit_offset("group", topic, 1, version=version) == OLD_EPOCH
    newer.finish(commit=True)


@pytest.mark.parametrize("successor", [V1, V2], ids=["then-v1", "then-v2"])
def test_7_2_a_new_process_aborts_what_is_open(
    producers: Producers,
    router: RawClient,
    topic: str,
    client_version: ClientVersion,
    successor: ClientVersion,
    direct: bool,
) -> None:
    old = producers(client_version, direct=direct).begin()
    for partition in range(4):
        old.write(topic, b"lost", partition=partition)
    new = producers(successor, direct=direct).begin()
    assert (new.producer_id, new.epoch) == (old.producer_id, old.epoch + 2)
    for partition in range(4):
        await_stable(router, topic, 2, partition)
        assert read_committed(router, topic, partition=partition) == []
        for worker in (0, 1):
            for version in (11, 12):
                answer = old.send(
                    topic, b"late", partition=partition, worker=worker, version=version
                )
                assert answer.error_code == OLD_EPOCH
        await_stable(router, topic, 2, partition)
    new.write(topic, b"kept")
    new.finish(commit=True)
    await_stable(router, topic, 4)
    assert read_committed(router, topic) == [b"kept"]


def test_7_3_a_producer_that_goes_on_after_an_error(
    producers: Producers, topic: str, direct: bool
) -> None:
    producer = producers(V1, direct=direct).begin()
    me = producer.producer_id
    producer.write(topic, b"aborted")
    assert producer.init(producer_id=me, epoch=0).error_code == 0
    raised = producer.epoch
    assert raised > 0
    # Its answer was lost: the same again.
    again = producer.init(producer_id=me, epoch=0)
    assert (again.error_code, again.producer_epoch) == (0, raised)
    assert producer.init(producer_id=me, epoch=raised).error_code == 0
    assert producer.epoch == raised + 1
    again = producer.init(producer_id=me, epoch=raised)
    assert (again.error_code, again.producer_epoch) == (0, raised + 1)
    for version in (3, 4, 5):
        expected = FENCED if version >= 4 else OLD_EPOCH
        assert producer.init(producer_id=me, epoch=0, version=version).error_code == expected
        # One that was never its own is as old as any.
        assert producer.init(producer_id=me + 999, epoch=0, version=version).error_code == expected


def test_7_3_an_id_without_an_epoch_or_the_reverse(producers: Producers) -> None:
    producer = producers().begin()
    assert producer.init(producer_id=producer.producer_id).error_code == INVALID_REQUEST
    assert producer.init(epoch=0).error_code == INVALID_REQUEST


def _exhaust(broker: Broker, transactional_id: str) -> None:
    """Give the id its last epoch."""
    restart_with_record(broker, transactional_id, producer_epoch=LAST_EPOCH, last_producer_epoch=-1)


def test_7_4_end_txn_gives_a_new_producer_id_when_epochs_are_exhausted(
    broker: Broker, producers: Producers, router: RawClient, topic: str, new_id: str
) -> None:
    producers(V2).begin()
    _exhaust(broker, new_id)
    producer = producers(V2)
    producer.producer_id, producer.epoch = _identity(router, new_id)
    old = producer.producer_id
    producer.write(topic, b"last")
    # The first answer, although this worker has just started, and has no producer ids yet.
    assert producer.end(commit=True).error_code == 0
    new = producer.producer_id
    assert (new != old, producer.epoch) == (True, 0)
    await_stable(router, topic, 2)
    again = producers(V2)
    again.producer_id, again.epoch = old, LAST_EPOCH
    answer = again.end(commit=True)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (0, new, 0)
    producer.write(topic, b"first")
    producer.finish(commit=True)
    await_stable(router, topic, 4)
    assert read_committed(router, topic) == [b"last", b"first"]


def test_7_4_init_producer_id_too(
    broker: Broker, producers: Producers, router: RawClient, new_id: str
) -> None:
    first = producers(V2).begin()
    _exhaust(broker, new_id)
    second = producers(V2).begin()
    assert (second.producer_id != first.producer_id, second.epoch) == (True, 0)
    assert _identity(router, new_id) == (second.producer_id, 0)


def _identity(client: RawClient, transactional_id: str) -> tuple[int, int]:
    state = describe_transaction(client, transactional_id)
    return state.producer_id, state.producer_epoch


def test_7_5_a_timeout_out_of_range(producers: Producers, direct: bool) -> None:
    producer = producers(direct=direct)
    producer.begin()
    for timeout_ms in (-1, 0, 120_001):
        answer = producer.init(timeout_ms)
        assert answer.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
        assert (answer.producer_id, answer.producer_epoch) == (-1, -1)
    assert producer.init(120_000).error_code == 0


def test_7_5_an_empty_id_is_none(producers: Producers, direct: bool) -> None:
    assert producers(transactional_id="", direct=direct).init().error_code == INVALID_REQUEST


def test_7_5_another_workers_id(broker: Broker, producers: Producers, new_id: str) -> None:
    producers().begin()
    with worker_clients(broker) as clients:
        other = clients[1 - owner_of(new_id, 2)]
        answer = other.call(InitProducerIdRequest(new_id, 60_000))
    assert answer.error_code == ErrorCode.NOT_COORDINATOR


def test_7_5_what_a_client_may_ask_for_is_kept(
    producers: Producers, router: RawClient, new_id: str
) -> None:
    producers().begin(timeout_ms=77_000)
    state = await_state(router, new_id, "Empty")
    assert state.transaction_timeout_ms == 77_000
