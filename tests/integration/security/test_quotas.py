"""Quotas over raw connections: what replies say, and when connections are muted."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.messages.alter_client_quotas import AlterClientQuotasRequest, EntryRequest
from moldau.broker.wire.messages.alter_client_quotas import EntityData as AlteredEntity
from moldau.broker.wire.messages.api_versions import ApiVersionsRequest
from moldau.broker.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from moldau.broker.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from moldau.broker.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.broker.wire.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from moldau.broker.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from moldau.broker.wire.messages.heartbeat import HeartbeatRequest
from moldau.broker.wire.messages.metadata import MetadataRequest
from tests.support.brokers.running import Broker, running_broker, wait_until
from tests.support.raw.calls import create_topic
from tests.support.raw.client import RawClient, make_batch
from tests.support.raw.quotas import (
    BATCH,
    Anyone,
    alter_quotas,
    produce_request,
    set_quota,
)

RATE = 20_000  # bytes per second: ten windows allow twenty batches of BATCH


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with running_broker(workers=2) as running:
        yield running


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> str:
    name = f"t-{abs(hash(request.node.name)) % 10**9}"
    with Anyone(broker) as client:
        create_topic(client, name)
    return name


def fetch(
    client: RawClient, topic: str, offset: int = 0, max_bytes: int = 1 << 20
) -> FetchResponse:
    wanted = FetchPartition(0, fetch_offset=offset, partition_max_bytes=max_bytes)
    topics = [FetchTopic(topic, partitions=[wanted])]
    response: FetchResponse = client.call(
        FetchRequest(max_wait_ms=0, max_bytes=max_bytes, topics=topics), 12
    )
    return response


def records_of(response: FetchResponse) -> int:
    return sum(
        sum(map(len, part.records)) if isinstance(part.records, list) else len(part.records or b"")
        for each in response.responses
        for part in each.partitions
    )


# --- describing and altering ---


def described(
    client: RawClient, *components: tuple[str, int, str | None], strict: bool = False
) -> dict[tuple[tuple[str, str | None], ...], dict[str, float]]:
    request = DescribeClientQuotasRequest([ComponentData(*each) for each in components], strict)
    response: DescribeClientQuotasResponse = client.call(request, 1)
    assert response.error_code == 0
    return {
        tuple((part.entity_type, part.entity_name) for part in entry.entity): {
            each.key: each.value for each in entry.values
        }
        for entry in response.entries or []
    }


@pytest.mark.parametrize("version", [0, 1])
def test_quotas_are_set_on_all_workers_and_removed(clients: list[RawClient], version: int) -> None:
    entity = {"user": None, "client-id": f"app, v={version}"}
    key = tuple(entity.items())
    one, other = clients
    answer = alter_quotas(one, entity, {"producer_byte_rate": 5e9}, version=version)
    assert answer.error_code == 0
    assert [(part.entity_type, part.entity_name) for part in answer.entity] == list(key)
    wanted = ("client-id", 0, entity["client-id"])
    assert described(other, wanted) == {key: {"producer_byte_rate": 5e9}}  # at once
    set_quota(other, entity, producer_byte_rate=None, request_percentage=12.5)
    assert described(one, wanted, ("user", 1, None), strict=True) == {
        key: {"request_percentage": 12.5}
    }
    assert described(one, wanted, strict=True) == {}
    set_quota(one, entity, request_percentage=None)
    assert described(other, wanted) == {}


def test_quotas_outlive_their_workers(broker: Broker, clients: list[RawClient]) -> None:
    set_quota(clients[0], {"user": "kept"}, consumer_byte_rate=7)
    old = broker.kill("worker", 1)
    broker.wait_restarted("worker", 1, old)
    with Anyone(broker, worker=1) as client:
        assert described(client, ("user", 0, "kept")) == {
            (("user", "kept"),): {"consumer_byte_rate": 7}
        }
        set_quota(client, {"user": "kept"}, consumer_byte_rate=None)


def test_nothing_is_changed_by_a_request_that_only_validates(clients: list[RawClient]) -> None:
    entity = {"user": "nobody"}
    values = {"producer_byte_rate": 5.0}
    assert alter_quotas(clients[0], entity, values, validate_only=True).error_code == 0
    assert described(clients[0], ("user", 0, "nobody")) == {}
    refused = alter_quotas(clients[0], entity, {"producer_byte_rate": -1}, validate_only=True)
    assert refused.error_code == ErrorCode.INVALID_REQUEST


def test_each_entity_is_answered_for_itself(clients: list[RawClient]) -> None:
    entries = [
        EntryRequest([AlteredEntity("user", "a")]),
        EntryRequest([AlteredEntity("user", "a")]),
        EntryRequest([AlteredEntity("group", "a")]),
        EntryRequest([AlteredEntity("user", "a"), AlteredEntity("ip", "10.0.0.1")]),
    ]
    answers = clients[0].call(AlterClientQuotasRequest(entries), 1).entries
    refused = ErrorCode.INVALID_REQUEST
    assert [each.error_code for each in answers] == [0, refused, refused, refused]


def test_a_filter_that_is_refused(clients: list[RawClient]) -> None:
    request = DescribeClientQuotasRequest([ComponentData("tenant", 2, None)])
    response = clients[0].call(request, 1)
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert response.entries is None


# --- produce ---


# A mute is measured from before the request that leads to it was sent: the client may hear of it
# late, when a part of it is over, but what follows is never served before its end.


@pytest.mark.parametrize("version", [3, 12])
def test_a_producer_over_its_quota_is_answered_at_once_and_then_muted(
    broker: Broker, topic: str, version: int
) -> None:
    client_id = f"producer-{version}"
    big = bytes(make_batch([(None, bytes(8 * RATE), 1)]))
    with Anyone(broker, client_id=client_id) as client, Anyone(broker, client_id="other") as other:
        set_quota(other, {"client-id": client_id}, producer_byte_rate=RATE)
        first = [client.produce_batch(topic, version=version).throttle_time_ms for _ in range(10)]
        assert not any(first)
        begun = time.monotonic()
        throttled = client.produce_batch(topic, version=version, batch=big).throttle_time_ms
        answered = time.monotonic() - begun
        assert answered * 1000 < throttled  # not held back by the wait
        client.send(ApiVersionsRequest(), 0)
        assert other.produce_batch(topic).throttle_time_ms == 0  # while it is muted
        client.receive()
        assert (time.monotonic() - begun) * 1000 >= throttled
        set_quota(other, {"client-id": client_id}, producer_byte_rate=None)


def test_connections_and_workers_of_a_user(broker: Broker, topic: str) -> None:
    """All connections of a user share its quota at a worker, whatever their client ids."""
    with Anyone(broker) as admin:
        set_quota(admin, {"user": "greedy"}, producer_byte_rate=RATE)
        big = bytes(make_batch([(None, bytes(15 * RATE), 1)]))
        with (
            Anyone(broker, user="greedy", client_id="one") as one,
            Anyone(broker, user="greedy", client_id="two") as two,
            Anyone(broker, user="modest") as modest,
        ):
            assert one.produce_batch(topic, batch=big).throttle_time_ms > 0
            assert two.produce_batch(topic).throttle_time_ms > 0
            assert modest.produce_batch(topic).throttle_time_ms == 0
        set_quota(admin, {"user": "greedy"}, producer_byte_rate=None)


def test_acks_0_is_muted_all_the_same_and_loses_nothing(broker: Broker, topic: str) -> None:
    """What a muted producer sent before it hung up is appended: by its quota that would take a
    minute."""
    with Anyone(broker) as admin:
        set_quota(admin, {"client-id": "acks-0"}, producer_byte_rate=RATE / 20)
        client = Anyone(broker, client_id="acks-0")
        for _ in range(8):
            client.send(produce_request(topic, acks=0), 12)
        wait_until(lambda: end_offset(admin, topic) >= 1, 30, "the first is appended")
        before = end_offset(admin, topic)
        client.hang_up()
        wait_until(lambda: end_offset(admin, topic) == 8, 30, "all is appended")
        assert before < 8
        set_quota(admin, {"client-id": "acks-0"}, producer_byte_rate=None)


def end_offset(client: RawClient, topic: str) -> int:
    return client.fetch(topic, 0, max_bytes=1).high_watermark


def test_trusted_connections_have_no_quota(broker: Broker, topic: str) -> None:
    with Anyone(broker) as admin, Anyone(broker, is_operator=True) as operator:
        set_quota(admin, {"client-id": None}, producer_byte_rate=10)
        waits = [operator.produce_batch(topic).throttle_time_ms for _ in range(3)]
        set_quota(operator, {"client-id": None}, producer_byte_rate=None)
        assert waits == [0, 0, 0]


# --- fetch ---


def test_a_fetch_over_the_quota_is_empty_and_not_counted(broker: Broker, topic: str) -> None:
    with Anyone(broker) as admin, Anyone(broker, client_id="reader") as reader:
        for _ in range(40):
            admin.produce_batch(topic)
        set_quota(admin, {"client-id": "reader"}, consumer_byte_rate=RATE)
        # No more than ten windows allow, whatever is asked for.
        first = fetch(reader, topic)
        assert first.throttle_time_ms == 0
        assert 10 * RATE - 2 * len(BATCH) < records_of(first) <= 10 * RATE
        begun = time.monotonic()
        refused = fetch(reader, topic, offset=15)
        assert refused.throttle_time_ms > 0
        assert refused.responses == []
        assert refused.error_code == 0
        again = fetch(reader, topic, offset=39)  # after the wait
        assert (time.monotonic() - begun) * 1000 >= refused.throttle_time_ms
        assert records_of(again) <= 2 * len(BATCH)
        assert fetch(admin, topic).throttle_time_ms == 0
        set_quota(admin, {"client-id": "reader"}, consumer_byte_rate=None)


# --- time on the event loop ---


def test_every_answer_carries_the_wait_for_time_used(broker: Broker) -> None:
    with Anyone(broker) as admin, Anyone(broker, client_id="busy") as busy:
        set_quota(admin, {"client-id": "busy"}, request_percentage=0.0001)
        waits: dict[str, int] = {}
        for request, version in (
            (ApiVersionsRequest(), 2),
            (MetadataRequest(topics=None), 9),
            (HeartbeatRequest("g", 1, "m"), 3),
            (HeartbeatRequest("g", 1, "m"), 3),  # served by its route
            (HeartbeatRequest("g", 2, "m"), 3),
        ):
            waits[type(request).__name__] = busy.call(request, version).throttle_time_ms
        assert all(0 < wait <= 1000 for wait in waits.values()), waits
        set_quota(admin, {"client-id": "busy"}, request_percentage=None)
        assert busy.call(HeartbeatRequest("g", 2, "m"), 3).throttle_time_ms == 0


# --- topics created and deleted ---


def created(
    client: RawClient, version: int, *names: str, partitions: int = 4
) -> tuple[int, list[int]]:
    topics = [CreatableTopic(name, partitions, 1) for name in names]
    response = client.call(CreateTopicsRequest(topics=topics, timeout_ms=5000), version)
    return response.throttle_time_ms, [each.error_code for each in response.topics]


def add_partitions(client: RawClient, topic: str, count: int) -> tuple[int, int]:
    """Error and throttle time."""
    topics = [CreatePartitionsTopic(topic, count, None)]
    response = client.call(CreatePartitionsRequest(topics=topics, timeout_ms=5000), 3)
    return response.results[0].error_code, response.throttle_time_ms


def test_mutations_over_the_rate_are_refused_or_slowed(broker: Broker) -> None:
    exceeded = ErrorCode.THROTTLING_QUOTA_EXCEEDED
    with Anyone(broker) as admin:
        for name in ("strict", "old"):
            set_quota(admin, {"client-id": name}, controller_mutation_rate=4)
        with Anyone(broker, client_id="strict") as strict:
            # 44 tokens: the eleventh empties the bucket, the twelfth overdraws it.
            names = [f"strict-{n}" for n in range(14)]
            wait, codes = created(strict, 7, *names)
            assert codes[:11] == [0] * 11
            assert codes[-1] == exceeded
            assert 0 < wait <= 2000
            topics = [DeleteTopicState(names[0])]
            deleted = strict.call(DeleteTopicsRequest(topics=topics, timeout_ms=5000), 6)
            assert deleted.responses[0].error_code == 0  # it had to wait before
            # Each takes nine seconds' worth: the second comes too soon, if the first does not. The
            # one behind it is served after the wait.
            grown = [add_partitions(strict, names[1], 40)]
            while grown[-1][0] == exceeded or len({code for code, _ in grown}) == 1:
                assert len(grown) < 4
                grown.append(add_partitions(strict, names[1], 40 + 36 * len(grown)))
            assert {code for code, _ in grown} == {exceeded, 0}
            assert all(wait > 0 for code, wait in grown if code == exceeded)
            again = strict.call(DeleteTopicsRequest(topic_names=[names[1]]), 5)
            assert again.responses[0].error_code == exceeded
            assert again.throttle_time_ms > 0
        with Anyone(broker, client_id="old") as old:
            names = [f"old-{n}" for n in range(14)]
            wait, codes = created(old, 5, *names)
            assert codes == [0] * 14
            assert 0 < wait <= 3000
        for name in ("strict", "old"):
            set_quota(admin, {"client-id": name}, controller_mutation_rate=None)


# --- through the router ---


def test_a_client_of_the_router_is_muted_by_the_worker(broker: Broker, topic: str) -> None:
    with Anyone(broker) as admin, Anyone(broker, client_id="routed", router=True) as routed:
        set_quota(admin, {"client-id": "routed"}, producer_byte_rate=RATE)
        big = bytes(make_batch([(None, bytes(12 * RATE), 1)]))
        begun = time.monotonic()
        wait = routed.produce_batch(topic, batch=big).throttle_time_ms
        assert wait > 0
        routed.produce_batch(topic)
        assert (time.monotonic() - begun) * 1000 >= wait
        set_quota(admin, {"client-id": "routed"}, producer_byte_rate=None)
