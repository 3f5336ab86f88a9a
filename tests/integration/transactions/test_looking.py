"""What administrators see of transactions, and how they end one: 7.27 to 7.29."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.placement import leader_of, owner_of
from moldau.broker.wire.messages.api_versions import ApiVersionsRequest
from moldau.broker.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from moldau.broker.wire.messages.describe_transactions import DescribeTransactionsRequest
from moldau.broker.wire.messages.list_transactions import ListTransactionsRequest
from moldau.broker.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.integration.transactions.txn_records import restart_without_record
from tests.support.brokers.running import Broker
from tests.support.raw.calls import worker_clients
from tests.support.raw.client import RawClient
from tests.support.raw.committed import await_stable, markers, read_committed, stable_end
from tests.support.raw.transactions import (
    V1,
    V2,
    ClientVersion,
    RawProducer,
    await_state,
    open_transactions,
)

Producers = Callable[..., RawProducer]

FEATURE = "transaction.version"


# 7.27


class Several:
    """Ids on both workers: two that are open, two that are not used yet."""

    def __init__(self, producers: Producers, topic: str) -> None:
        self.prefix = f"listed-{uuid.uuid4().hex[:8]}"
        names = [f"{self.prefix}-{number}" for number in range(40)]
        by_owner = [[name for name in names if owner_of(name, 2) == worker] for worker in (0, 1)]
        self.open = sorted(owned[0] for owned in by_owner)
        self.empty = sorted(owned[1] for owned in by_owner)
        self.producer_ids = {}
        for name in (*self.open, *self.empty):
            producer = producers(V2, name).begin()
            self.producer_ids[name] = producer.producer_id
            if name in self.open:
                producer.write(topic, b"x", partition=1)
                producer.write(topic, b"x", partition=2)

    @property
    def all(self) -> list[str]:
        return sorted(self.open + self.empty)

    def listed(self, client: RawClient, version: int = 2, **filters: Any) -> list[str]:
        answer = client.call(ListTransactionsRequest(**filters), version)
        assert answer.error_code == 0, answer
        found = [each.transactional_id for each in answer.transaction_states]
        return sorted(name for name in found if name.startswith(self.prefix))


@pytest.fixture
def several(producers: Producers, topic: str) -> Several:
    return Several(producers, topic)


def test_7_27_listed_over_all_workers(broker: Broker, router: RawClient, several: Several) -> None:
    for version in range(3):
        assert several.listed(router, version) == several.all
        assert several.listed(router, version, state_filters=["Ongoing"]) == several.open
        assert several.listed(router, version, state_filters=["Empty"]) == several.empty
    with worker_clients(broker) as clients:
        for number, client in enumerate(clients):
            own = [name for name in several.all if owner_of(name, 2) == number]
            assert several.listed(client) == own


def test_7_27_unknown_states_are_named(router: RawClient, several: Several) -> None:
    request = ListTransactionsRequest(state_filters=["Ongoing", "Nonsense", "empty"])
    answer = router.call(request)
    assert sorted(answer.unknown_state_filters) == ["Nonsense", "empty"]
    found = {each.transactional_id for each in answer.transaction_states}
    assert found.issuperset(several.open)
    assert not found.intersection(several.empty)


def test_7_27_by_producer_id(router: RawClient, several: Several) -> None:
    wanted = [several.open[0], several.empty[1]]
    ids = [several.producer_ids[name] for name in wanted]
    assert several.listed(router, producer_id_filters=ids) == sorted(wanted)
    assert several.listed(router, producer_id_filters=[987_654_321]) == []


@pytest.mark.parametrize("version", [1, 2])
def test_7_27_by_duration(router: RawClient, several: Several, version: int) -> None:
    def running_for(duration_ms: int) -> list[str]:
        return several.listed(
            router, version, duration_filter=duration_ms, state_filters=["Ongoing"]
        )

    assert running_for(0) == several.open
    assert running_for(3_600_000) == []


def test_7_27_by_pattern(router: RawClient, several: Several) -> None:
    def like(pattern: str) -> list[str]:
        return several.listed(router, transactional_id_pattern=pattern)

    first, *_ = several.open
    assert like(first) == [first]
    assert like(f"{several.prefix}-\\d+") == several.all
    assert like(several.prefix) == [], "the whole id"
    for bad in ("(", "[a", "*"):
        answer = router.call(ListTransactionsRequest(transactional_id_pattern=bad))
        assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_7_27_described_over_all_workers(
    broker: Broker, router: RawClient, several: Several, topic: str
) -> None:
    names = [*several.all, "never-seen", ""]
    answer = router.call(DescribeTransactionsRequest(names))
    states = {state.transactional_id: state for state in answer.transaction_states}
    assert sorted(states) == sorted(names)
    assert states["never-seen"].error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert states[""].error_code == ErrorCode.INVALID_REQUEST
    for name in several.all:
        state = states[name]
        assert (state.error_code, state.producer_id) == (0, several.producer_ids[name])
        assert (state.producer_epoch, state.transaction_timeout_ms) == (0, 60_000)
        places = [(entry.topic, entry.partitions) for entry in state.topics]
        if name in several.open:
            assert (state.transaction_state, places) == ("Ongoing", [(topic, [1, 2])])
            assert state.transaction_start_time_ms > 1_600_000_000_000
        else:
            assert (state.transaction_state, places) == ("Empty", [])
            assert state.transaction_start_time_ms == -1
    with worker_clients(broker) as clients:
        other = clients[1 - owner_of(several.open[0], 2)]
        (state,) = other.call(DescribeTransactionsRequest([several.open[0]])).transaction_states
        assert state.error_code == ErrorCode.NOT_COORDINATOR


# 7.28


def _abort(
    client: RawClient, topic: str, partition: int, producer_id: int, epoch: int, version: int
) -> int:
    wanted = WritableTxnMarkerTopic(topic, [partition])
    marker = WritableTxnMarker(producer_id, epoch, False, [wanted], 0)
    (answer,) = client.call(WriteTxnMarkersRequest([marker]), version).markers
    assert answer.producer_id == producer_id
    return int(answer.topics[0].partitions[0].error_code)


@pytest.fixture
def hanging(producers: Producers, topic: str, client_version: ClientVersion) -> RawProducer:
    """A producer with an open transaction in partition 0, from offset 2 on."""
    producer = producers(client_version).begin()
    producer.write(topic, b"committed")
    producer.finish(commit=True)
    producer.write(topic, b"open")
    producer.write(topic, b"open too")
    return producer


def test_7_28_describe_producers_shows_what_is_open(
    broker: Broker, router: RawClient, topic: str, hanging: RawProducer
) -> None:
    with worker_clients(broker) as clients:
        for client in (router, *clients):
            assert open_transactions(client, topic) == {hanging.producer_id: 2}
            request = DescribeProducersRequest([TopicRequest(topic, [0, 1, 9])])
            (entry,) = client.call(request).topics
            codes = {each.partition_index: each.error_code for each in entry.partitions}
            assert codes == {0: 0, 1: 0, 9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
            found = {each.partition_index: each.active_producers for each in entry.partitions}
            (state,) = found[0]
            assert (state.producer_epoch, state.last_sequence) == (
                hanging.epoch,
                2 if hanging.client is V1 else 1,
            )
            assert state.coordinator_epoch == 1
            assert found[1] == []
    hanging.finish(commit=False)
    await_stable(router, topic, 5)
    assert open_transactions(router, topic) == {}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("to", ["router", "leader", "other"])
def test_7_28_an_administrator_aborts_it(
    broker: Broker, router: RawClient, topic: str, hanging: RawProducer, version: int, to: str
) -> None:
    with worker_clients(broker) as clients:
        leader = leader_of(topic, 0, 2)
        at = {"router": router, "leader": clients[leader], "other": clients[1 - leader]}[to]
        me, epoch = hanging.producer_id, hanging.epoch
        if epoch:
            code = _abort(at, topic, 0, me, epoch - 1, version)
            assert code == ErrorCode.INVALID_PRODUCER_EPOCH
        assert _abort(at, topic, 9, me, epoch, version) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert _abort(at, "never-seen", 0, me, epoch, version) == 3
        assert stable_end(router, topic) == 2
        for _ in range(2):  # nothing is left to end the second time
            assert _abort(at, topic, 0, me, epoch, version) == 0
            await_stable(router, topic, 5)
        assert open_transactions(router, topic) == {}
        assert markers(router, topic) == [(1, True), (4, False)]
        for client in clients:
            assert read_committed(client, topic) == [b"committed"]


def test_7_28_what_its_coordinator_still_knows_goes_on(
    router: RawClient, topic: str, hanging: RawProducer
) -> None:
    """It did not hang after all: an administrator has cut it in two."""
    assert _abort(router, topic, 0, hanging.producer_id, hanging.epoch, 1) == 0
    await_stable(router, topic, 5)
    hanging.write(topic, b"after")
    assert stable_end(router, topic) == 5
    hanging.finish(commit=True)
    await_state(router, hanging.transactional_id, "CompleteCommit")
    await_stable(router, topic, 7)
    assert read_committed(router, topic) == [b"committed", b"after"]
    hanging.write(topic, b"next")
    hanging.finish(commit=True)
    await_stable(router, topic, 9)


def test_7_28_a_transaction_that_no_coordinator_knows(
    broker: Broker, producers: Producers, router: RawClient, topic: str
) -> None:
    """What `kafka-transactions.sh find-hanging` asks for, and what `abort` does then."""
    producer = producers(V2, direct=True).begin()
    producer.write(topic, b"hangs")
    producer.write(topic, b"hangs", partition=1)
    restart_without_record(broker, producer.transactional_id)
    with RawClient(broker.port) as client:
        (found,) = open_transactions(client, topic)
        assert found == producer.producer_id
        request = ListTransactionsRequest(producer_id_filters=[found])
        assert client.call(request).transaction_states == []
        for partition in (0, 1):
            assert stable_end(client, topic, partition) == 0
            assert _abort(client, topic, partition, found, 0, 1) == 0
            await_stable(client, topic, 2, partition)
            assert read_committed(client, topic, partition=partition) == []


# 7.29


@pytest.fixture(params=["router", "worker"])
def anyone(request: pytest.FixtureRequest, broker: Broker) -> Iterator[RawClient]:
    port = broker.port if request.param == "router" else broker.processes("worker")[0]["port"]
    with RawClient(port) as client:
        yield client


def test_7_29_the_version_of_transactions(anyone: RawClient) -> None:
    request = ApiVersionsRequest("test", "1.0")
    for version in (3, 4):
        answer = anyone.call(request, version)
        finalized = {each.name: each.max_version_level for each in answer.finalized_features}
        assert finalized[FEATURE] == 2
        supported = {
            each.name: (each.min_version, each.max_version) for each in answer.supported_features
        }
        assert supported[FEATURE] == (2, 2)
