"""Administration as the protocol has it: what client libraries leave out or cannot ask for."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from moldau.broker.settings.kafka import BROKER_KEYS, TOPIC_KEYS, ConfigSource
from moldau.broker.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from moldau.broker.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.broker.wire.messages.describe_cluster import DescribeClusterRequest
from moldau.broker.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from moldau.broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.broker.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau.broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.broker.wire.messages.unregister_broker import UnregisterBrokerRequest
from tests.support.brokers.running import Broker, wait_until
from tests.support.raw.client import NAMED_FETCH, RawClient, make_batch

UNKNOWN_TOPIC, TOPIC_EXISTS, INVALID_ASSIGNMENT, INVALID_CONFIG, INVALID_REQUEST = 3, 36, 39, 40, 42
INVALID_REPLICATION_FACTOR, BROKER_ID_NOT_REGISTERED = 38, 102
UNKNOWN_TOPIC_ID, MISMATCHED_ENDPOINT_TYPE, UNSUPPORTED_ENDPOINT_TYPE = 100, 114, 115
TOPIC, BROKER, BROKER_LOGGER = 2, 4, 8
SET, DELETE, APPEND = 0, 1, 2
LOGGER_SOURCE = ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG
PROPAGATION_S = 30.0


@pytest.fixture
def raw(moldau: Broker) -> Iterator[RawClient]:
    with RawClient(moldau.port + 1) as client:
        yield client


@pytest.fixture
def other(moldau: Broker) -> Iterator[RawClient]:
    """The other worker."""
    with RawClient(moldau.port + 2) as client:
        yield client


def create(raw: RawClient, *topics: CreatableTopic, version: int | None = None) -> list[Any]:
    request = CreateTopicsRequest(topics=list(topics), timeout_ms=10_000)
    answers: list[Any] = raw.call(request, version).topics
    return answers


def new_topic(raw: RawClient, partitions: int = 1) -> Any:
    (made,) = create(raw, CreatableTopic(f"raw-{uuid.uuid4().hex[:12]}", partitions, 1))
    assert made.error_code == 0
    return made


def describe(raw: RawClient, kind: int, name: str, keys: list[str] | None = None) -> Any:
    request = DescribeConfigsRequest(
        [DescribeConfigsResource(kind, name, keys)],
        include_synonyms=True,
        include_documentation=True,
    )
    (result,) = raw.call(request).results
    return result


def change(raw: RawClient, kind: int, name: str, key: str, value: str | None) -> int:
    config = AlterableConfig(key, SET if value is not None else DELETE, value)
    request = IncrementalAlterConfigsRequest([AlterConfigsResource(kind, name, [config])])
    code: int = raw.call(request).responses[0].error_code
    return code


# --- configurations ---


def test_every_key_has_a_type_and_documentation(raw: RawClient) -> None:
    topic = new_topic(raw)

    for kind, name, keys in ((TOPIC, topic.name, TOPIC_KEYS), (BROKER, "0", BROKER_KEYS)):
        result = describe(raw, kind, name)
        assert result.error_code == 0
        assert [entry.name for entry in result.configs] == list(keys)
        for entry in result.configs:
            key = keys[entry.name]
            assert (entry.config_type, entry.read_only) == (key.type, key.read_only)
            assert entry.documentation == key.documentation != ""


def test_synonyms_in_order_of_precedence(raw: RawClient) -> None:
    topic, key, synonym = (
        new_topic(raw).name,
        "delete.retention.ms",
        "log.cleaner.delete.retention.ms",
    )
    try:
        assert change(raw, TOPIC, topic, key, "1") == 0
        assert change(raw, BROKER, "0", synonym, "2") == 0
        assert change(raw, BROKER, "", synonym, "3") == 0

        (entry,) = describe(raw, TOPIC, topic, [key]).configs
        assert [(s.name, s.value, s.source) for s in entry.synonyms] == [
            (key, "1", ConfigSource.DYNAMIC_TOPIC_CONFIG),
            (synonym, "2", ConfigSource.DYNAMIC_BROKER_CONFIG),
            (synonym, "3", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
            (synonym, "86400000", ConfigSource.DEFAULT_CONFIG),
        ]
        assert (entry.value, entry.config_source) == ("1", ConfigSource.DYNAMIC_TOPIC_CONFIG)
    finally:
        assert change(raw, BROKER, "0", synonym, None) == 0
        assert change(raw, BROKER, "", synonym, None) == 0


def test_configuration_for_all_brokers(raw: RawClient, other: RawClient) -> None:
    topic, key = new_topic(raw).name, "message.max.bytes"
    assert describe(raw, BROKER, "").configs == []
    try:
        assert change(raw, BROKER, "", key, "5000") == 0

        (entry,) = describe(raw, BROKER, "").configs
        assert (entry.name, entry.value) == (key, "5000")
        for client, node in ((raw, "0"), (other, "1")):
            (own,) = describe(client, BROKER, node, [key]).configs
            source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
            assert (own.value, own.config_source) == ("5000", source)
            wait_until(
                lambda client=client: client.produce(  # type: ignore[misc]
                    topic, make_batch([(None, b"x" * 6000, now_ms())])
                ).error_code == 10,
                PROPAGATION_S,
                "topics that do not set it follow",
            )  # fmt: skip
    finally:
        assert change(raw, BROKER, "", key, None) == 0
    assert describe(raw, BROKER, "").configs == []


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "there-is-no-such-topic", UNKNOWN_TOPIC),
        (BROKER, "7", INVALID_REQUEST),
        (BROKER, "first", INVALID_REQUEST),
        (99, "x", INVALID_REQUEST),
    ],
)
def test_resources_that_are_not_there(raw: RawClient, kind: int, name: str, code: int) -> None:
    assert describe(raw, kind, name).error_code == code
    assert change(raw, kind, name, "retention.ms", "1") == code


def test_a_worker_is_not_unregistered(raw: RawClient) -> None:
    for node in (0, 1):
        answer = raw.call(UnregisterBrokerRequest(node))
        assert answer.error_code == INVALID_REQUEST
        assert "--workers" in answer.error_message
    assert raw.call(UnregisterBrokerRequest(2)).error_code == BROKER_ID_NOT_REGISTERED
    assert [each.broker_id for each in raw.call(DescribeClusterRequest()).brokers] == [0, 1]


def levels(raw: RawClient, node: str, *names: str) -> dict[str, str]:
    answer = describe(raw, BROKER_LOGGER, node, list(names) or None)
    assert answer.error_code == 0
    assert {entry.config_source for entry in answer.configs} <= {LOGGER_SOURCE}
    assert not any(entry.read_only for entry in answer.configs)
    return {entry.name: entry.value for entry in answer.configs}


def test_the_loggers_of_a_worker_and_their_levels(raw: RawClient, other: RawClient) -> None:
    before = levels(raw, "0")
    assert {"root", "moldau", "moldau.log", "moldau.server", "moldau.request"} <= before.keys()
    assert set(before.values()) <= {"TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL"}
    name, inherited = "moldau.retention", before["moldau.retention"]
    for level in ("FATAL", "ERROR", "WARN", "DEBUG", "TRACE"):
        assert change(raw, BROKER_LOGGER, "0", name, level) == 0
        assert levels(raw, "0", name, "root") == {name: level, "root": before["root"]}
    assert levels(other, "1", name) == {name: inherited}  # the other worker keeps its own
    assert change(raw, BROKER_LOGGER, "0", name, None) == 0
    assert levels(raw, "0", name) == {name: inherited}
    # Those beneath inherit.
    assert change(raw, BROKER_LOGGER, "0", "moldau", "ERROR") == 0
    assert levels(raw, "0", name) == {name: "ERROR"}
    assert change(raw, BROKER_LOGGER, "0", "moldau", None) == 0
    assert levels(raw, "0") == before


@pytest.mark.parametrize(
    ("node", "name", "operation", "level", "code"),
    [
        ("0", "moldau.nope", SET, "INFO", INVALID_CONFIG),
        ("0", "moldau.nope", DELETE, None, INVALID_CONFIG),
        ("0", "moldau.log", SET, "LOUD", INVALID_CONFIG),
        ("0", "moldau.log", SET, "info", INVALID_CONFIG),
        ("0", "moldau.log", SET, "OFF", INVALID_CONFIG),
        ("0", "moldau.log", SET, None, INVALID_REQUEST),
        ("0", "moldau.log", APPEND, "INFO", INVALID_REQUEST),
        ("0", "root", DELETE, None, INVALID_REQUEST),
        ("1", "moldau.log", SET, "INFO", INVALID_REQUEST),  # of the other worker
        ("", "moldau.log", SET, "INFO", INVALID_REQUEST),
        ("first", "moldau.log", SET, "INFO", INVALID_REQUEST),
    ],
)
def test_levels_that_cannot_be_set(
    raw: RawClient, node: str, name: str, operation: int, level: str | None, code: int
) -> None:
    before = levels(raw, "0")
    configs = [
        AlterableConfig("moldau.worker", SET, "FATAL"),
        AlterableConfig(name, operation, level),
    ]
    request = IncrementalAlterConfigsRequest([AlterConfigsResource(BROKER_LOGGER, node, configs)])
    assert raw.call(request).responses[0].error_code == code
    assert levels(raw, "0") == before  # all of a request or nothing
    if node != "0":
        assert describe(raw, BROKER_LOGGER, node).error_code == code


def test_levels_are_only_checked_when_asked_for(raw: RawClient) -> None:
    configs = [AlterableConfig("moldau.log", SET, "FATAL")]
    request = IncrementalAlterConfigsRequest(
        [AlterConfigsResource(BROKER_LOGGER, "0", configs)], validate_only=True
    )
    assert raw.call(request).responses[0].error_code == 0
    assert levels(raw, "0", "moldau.log") != {"moldau.log": "FATAL"}


def test_requests_are_logged_while_their_logger_says_so(moldau: Broker, raw: RawClient) -> None:
    topic = new_topic(raw).name

    def logged() -> int:
        return moldau.log().count("moldau.request: Produce")

    def produce() -> None:
        for _ in range(3):  # after the first the connection knows the request by its bytes
            assert raw.produce(topic, make_batch([(b"k", b"v", 1)])).error_code == 0

    produce()
    assert logged() == 0
    assert change(raw, BROKER_LOGGER, "0", "moldau.request", "DEBUG") == 0
    try:
        produce()
        wait_until(lambda: logged() == 3, PROPAGATION_S, "each of the requests is logged")
    finally:
        assert change(raw, BROKER_LOGGER, "0", "moldau.request", "INFO") == 0
    produce()
    assert logged() == 3


# --- topics ---


def test_a_topic_named_twice_in_a_request(raw: RawClient) -> None:
    twice, once = (f"raw-{uuid.uuid4().hex[:12]}" for _ in range(2))

    answers = create(
        raw, CreatableTopic(twice, 1, 1), CreatableTopic(once, 1, 1), CreatableTopic(twice, 2, 1)
    )

    assert {answer.name: answer.error_code for answer in answers} == {
        twice: INVALID_REQUEST,
        once: 0,
    }
    assert len(answers) == 2


def test_what_was_created_is_described(raw: RawClient) -> None:
    made = new_topic(raw, partitions=3)

    assert (made.num_partitions, made.replication_factor) == (3, 1)
    assert len(made.topic_id) == 16
    assert {config.name for config in made.configs} == set(TOPIC_KEYS)


def test_replication_factors_are_for_clusters_unless_they_shall_be_checked(raw: RawClient) -> None:
    """Scripts, Streams and Connect ask for 3: they work with fewer workers."""

    def asking_for(factor: int) -> Any:
        topic = CreatableTopic(f"raw-{uuid.uuid4().hex[:12]}", 1, factor)
        (answer,) = raw.call(CreateTopicsRequest([topic], 10_000, validate_only=True)).topics
        return answer

    for factor in (-1, 1, 2, 3, 32767):
        accepted = asking_for(factor)
        assert (accepted.error_code, accepted.error_message) == (0, None)
        assert accepted.replication_factor == 1  # what there is, not what was asked for
    for factor in (0, -2, -32768):
        assert asking_for(factor).error_code == INVALID_REPLICATION_FACTOR
    key = "moldau.replication.factor.check.enable"
    assert change(raw, BROKER, "", key, "true") == 0
    try:
        assert [asking_for(factor).error_code for factor in (-1, 1, 2)] == [0, 0, 0]
        for factor in (3, 32767):
            refused = asking_for(factor)
            assert refused.error_code == INVALID_REPLICATION_FACTOR
            assert "only 2 broker(s)" in refused.error_message
    finally:
        assert change(raw, BROKER, "", key, None) == 0
    assert asking_for(3).error_code == 0


def test_replicas_assigned_by_hand(raw: RawClient) -> None:
    def assigned(*replicas: tuple[int, list[int]]) -> Any:
        topic = CreatableTopic(
            f"raw-{uuid.uuid4().hex[:12]}",
            -1,
            -1,
            [CreatableReplicaAssignment(index, nodes) for index, nodes in replicas],
        )
        (answer,) = create(raw, topic)
        return answer

    assert assigned((0, [0]), (1, [1])).num_partitions == 2
    assert assigned((0, [0]), (2, [1])).error_code == INVALID_ASSIGNMENT
    assert assigned((0, [5])).error_code == INVALID_ASSIGNMENT


def test_a_topic_by_its_id(raw: RawClient, other: RawClient) -> None:
    made = new_topic(raw)

    def look_up(client: RawClient) -> Any:
        asked = MetadataRequestTopic(topic_id=made.topic_id, name=None)
        (found,) = client.call(MetadataRequest([asked])).topics
        return found

    assert look_up(raw).name == look_up(other).name == made.name

    deletion = DeleteTopicsRequest(topics=[DeleteTopicState(None, made.topic_id)])
    (gone,) = raw.call(deletion).responses
    assert (gone.error_code, gone.name) == (0, made.name)
    (again,) = raw.call(deletion).responses
    assert (again.error_code, again.name) == (UNKNOWN_TOPIC_ID, None)
    assert look_up(raw).error_code == UNKNOWN_TOPIC_ID
    wait_until(
        lambda: look_up(other).error_code == UNKNOWN_TOPIC_ID, PROPAGATION_S, "gone everywhere"
    )


def test_nothing_of_a_deleted_topic_is_served(raw: RawClient, other: RawClient) -> None:
    topic = new_topic(raw).name
    for client in (raw, other):
        assert client.produce(topic, make_batch([(None, b"v", now_ms())])).error_code == 0

    raw.call(DeleteTopicsRequest(topics=[DeleteTopicState(topic)]))

    for client in (raw, other):
        # An append never brings it back, even where the deletion is not known yet.
        assert client.produce(topic, make_batch([(None, b"v", now_ms())])).error_code != 0
        wait_until(
            lambda client=client: client.fetch(topic, 0).error_code == UNKNOWN_TOPIC,  # type: ignore[misc]
            PROPAGATION_S,
            "it cannot be read",
        )


def test_a_waiting_fetch_hears_of_the_deletion(
    moldau: Broker, raw: RawClient, other: RawClient
) -> None:
    topic = new_topic(raw).name
    for client in (raw, other):
        waiting = FetchRequest(
            max_wait_ms=600_000,  # longer than the client listens
            min_bytes=1,
            topics=[FetchTopic(topic, partitions=[FetchPartition(0)])],
        )
        client.send(waiting, NAMED_FETCH)
    with RawClient(moldau.port) as third:
        third.call(DeleteTopicsRequest(topics=[DeleteTopicState(topic)]))

    for client in (raw, other):
        (answer,) = client.receive().responses[0].partitions
        assert answer.error_code == UNKNOWN_TOPIC


# --- the cluster ---


@pytest.mark.parametrize(
    ("kind", "code"), [(1, 0), (2, MISMATCHED_ENDPOINT_TYPE), (9, UNSUPPORTED_ENDPOINT_TYPE)]
)
def test_endpoint_types(raw: RawClient, kind: int, code: int) -> None:
    answer = raw.call(DescribeClusterRequest(endpoint_type=kind))

    assert answer.error_code == code
    assert len(answer.brokers) == (2 if code == 0 else 0)
