"""Clients' own metrics (KIP-714), by raw requests: off, on, and everything that is refused."""

from __future__ import annotations

import contextlib
import random
import re
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.apis import APIS, ApiKey
from moldau.broker.wire.codecs import CODEC_NAMES, GZIP, LZ4, NONE, SNAPPY, ZSTD, compress
from moldau.broker.wire.messages.api_versions import ApiVersionsRequest
from moldau.broker.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from moldau.broker.wire.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from moldau.broker.wire.messages.list_config_resources import ListConfigResourcesRequest
from moldau.broker.wire.messages.push_telemetry import PushTelemetryRequest
from tests.support.brokers.running import Broker, free_ports, running_broker, wait_until
from tests.support.pages.console import Pages
from tests.support.raw.client import RawClient
from tests.support.raw.quotas import Anyone, set_quota
from tests.support.raw.telemetry import CLIENT_METRICS, subscribe, unsubscribe

TELEMETRY = {ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY}
Start = Callable[..., Broker]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = {"moldau.telemetry.enable": "true", "telemetry.max.bytes": 100_000}
    http = f"127.0.0.1:{free_ports(1)}"
    with running_broker(workers=2, http=http, broker=settings) as started:
        wait_until(lambda: started.processes("http")[0]["state"] == "running", 60, "it serves")
        yield started


@contextlib.contextmanager
def at(broker: Broker, where: int | str) -> Iterator[RawClient]:
    """A connection to a worker, or to the router, of a client that says what it is."""
    port = broker.port if where == "router" else broker.port + 1 + int(where)
    with RawClient(port) as client:
        client.call(ApiVersionsRequest("test-suite", "1.2.3"), 3)
        yield client


def ask(client: RawClient, instance_id: bytes = bytes(16)) -> GetTelemetrySubscriptionsResponse:
    found: Any = client.call(GetTelemetrySubscriptionsRequest(instance_id))
    return found  # type: ignore[no-any-return]


def push(
    client: RawClient,
    asked: GetTelemetrySubscriptionsResponse,
    metrics: bytes = b"",
    codec: int = NONE,
    *,
    subscription_id: int | None = None,
    terminating: bool = False,
) -> int:
    given = asked.subscription_id if subscription_id is None else subscription_id
    request = PushTelemetryRequest(asked.client_instance_id, given, terminating, codec, metrics)
    code: int = client.call(request).error_code
    return code


def measured(**values: float) -> bytes:
    data = MetricsData()
    scope = data.resource_metrics.add().scope_metrics.add()
    for name, value in values.items():
        metric = scope.metrics.add(name=f"org.apache.kafka.test.{name}")
        metric.gauge.data_points.add(as_double=value)
    text: bytes = data.SerializeToString()
    return text


@pytest.fixture
def subscribed(broker: Broker) -> Iterator[str]:
    """A subscription of the raw client to everything, as often as it likes."""
    name = f"s-{uuid.uuid4().hex[:8]}"
    with at(broker, 0) as client:
        configs = {"interval.ms": "100", "metrics": "*", "match": "client_id=raw"}
        assert subscribe(client, name, configs) == 0
        yield name
        assert unsubscribe(client, name) == 0


def series(broker: Broker) -> dict[str, float]:
    """What clients have pushed: lines of /metrics without the rest."""
    _, text, _ = Pages(broker).request("GET", "/metrics")
    found = re.findall(r"^(moldau_client_test_.*) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}


# --- off ---


def test_off_it_is_not_advertised_and_not_served(moldau: Broker) -> None:
    for port in (moldau.port, moldau.port + 1):
        with RawClient(port) as client:
            response: Any = client.call(ApiVersionsRequest("test", "1"), 3)
            named = {each.api_key for each in response.api_keys}
            assert named == set(APIS) - TELEMETRY
        for request in (GetTelemetrySubscriptionsRequest(), PushTelemetryRequest()):
            with RawClient(port) as client:
                client.send(request)
                client.must_be_closed()
    for refusal in ("PushTelemetry v0 is not served", "API 72 v0 is not served"):
        assert refusal in moldau.log()  # by a worker, by the router
    with RawClient(moldau.port) as client:
        assert subscribe(client, "x", {"metrics": "*"}) == ErrorCode.INVALID_REQUEST


# --- on ---


@pytest.mark.parametrize("where", [0, "router"])
def test_on_it_is_advertised_everywhere(broker: Broker, where: int | str) -> None:
    with at(broker, where) as client:
        response: Any = client.call(ApiVersionsRequest("test", "1"), 3)
        assert {each.api_key for each in response.api_keys} == set(APIS)


def test_without_a_subscription_every_client_is_asked_for_the_useful_ones(broker: Broker) -> None:
    with at(broker, 0) as client:
        found = ask(client)
        assert found.error_code == 0
        assert found.client_instance_id != bytes(16)
        assert found.push_interval_ms == 60_000
        assert found.accepted_compression_types == [ZSTD, LZ4, GZIP, SNAPPY]
        assert found.telemetry_max_bytes == 100_000
        assert not found.delta_temporality
        assert "org.apache.kafka.consumer.poll.idle.ratio.avg" in found.requested_metrics
        again = ask(client, found.client_instance_id)
        assert again.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED


@pytest.mark.parametrize("codec", sorted(set(CODEC_NAMES.values())))
@pytest.mark.parametrize("where", [1, "router"])
def test_what_is_pushed_is_in_the_metrics(
    broker: Broker, subscribed: str, codec: int, where: int | str
) -> None:
    name = f"codec{codec}{where}"
    with at(broker, where) as client:
        asked = ask(client)
        assert push(client, asked, compress(codec, measured(**{name: 2.5})), codec) == 0
        ((labels, value),) = [each for each in series(broker).items() if name in each[0]]
        assert value == 2.5
        assert 'client_id="raw"' in labels
        assert 'client_software_name="test-suite",client_software_version="1.2.3"' in labels
        assert 'client_host="127.0.0.1"' in labels


def test_a_push_may_go_to_another_worker_than_the_question(broker: Broker, subscribed: str) -> None:
    with at(broker, 0) as one, at(broker, 1) as other:
        asked = ask(one)
        assert push(other, asked, measured(elsewhere=1)) == 0
        assert push(one, asked, measured(elsewhere=2)) == 0
        values = [value for name, value in series(broker).items() if "elsewhere" in name]
        assert values == [2]  # once, and the last one


def test_large_pushes_are_read_too(broker: Broker, subscribed: str) -> None:
    """Pushes are read beside the event loop and cut to what is kept of a client."""
    with at(broker, 0) as client:
        asked = ask(client)
        many = measured(**{f"many{number}": number for number in range(1000)})
        assert 20_000 < len(many) < 100_000
        assert push(client, asked, many) == 0
        assert sum("_many" in name for name in series(broker)) == 256


def test_what_cannot_be_read_is_refused_and_nothing_happens(
    broker: Broker, subscribed: str
) -> None:
    bomb = bytes(50_000_000)
    noise = random.Random(714)
    with at(broker, 0) as client:
        asked = ask(client)

        def code(metrics: bytes, codec: int = NONE, **options: Any) -> int:
            """The error code of a push that does not come too early."""
            codes = []

            def is_answered() -> bool:
                codes.append(push(client, asked, metrics, codec, **options))
                return codes[-1] != ErrorCode.THROTTLING_QUOTA_EXCEEDED

            wait_until(is_answered, 30, "a push that is not too early")
            return codes[-1]

        assert code(compress(GZIP, bomb), GZIP) == ErrorCode.TELEMETRY_TOO_LARGE
        assert code(compress(ZSTD, bomb), ZSTD) == ErrorCode.TELEMETRY_TOO_LARGE
        # Raw snappy begins with a size, which noise makes large.
        unreadable = (ErrorCode.TELEMETRY_TOO_LARGE, ErrorCode.INVALID_RECORD)
        assert code(compress(LZ4, bomb)[:100_000], LZ4) in unreadable
        assert code(bytes(100_001)) == ErrorCode.TELEMETRY_TOO_LARGE
        assert code(measured(x=1)[:-1]) == ErrorCode.INVALID_RECORD
        for codec in (NONE, GZIP, SNAPPY, LZ4, ZSTD):
            for size in (10, 3000, 90_000):
                assert code(b"\xff" + noise.randbytes(size), codec) in unreadable
        assert code(b"", 9) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        other = asked.subscription_id ^ 1
        assert code(b"", subscription_id=other) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
        assert code(measured(fine=1)) == 0
        assert push(client, asked, measured(last=1), terminating=True) == 0
        assert code(b"") == ErrorCode.INVALID_REQUEST
        assert code(b"") == 0  # as in Kafka: only the last request counts
        nobody = GetTelemetrySubscriptionsResponse(client_instance_id=bytes(16))
        assert push(client, nobody) == ErrorCode.INVALID_REQUEST


def test_subscriptions_are_resources_as_in_kafka(broker: Broker) -> None:
    name = f"s-{uuid.uuid4().hex[:8]}"
    with at(broker, 0) as one, at(broker, 1) as other:
        configs = {"interval.ms": "7000", "metrics": "a.,b.", "match": "client_id=raw"}
        assert subscribe(one, name, configs) == 0
        asked = ask(other)  # all workers serve a change before it is answered
        assert (asked.push_interval_ms, asked.requested_metrics) == (7000, ["a.", "b."])
        for version in (0, 1):
            listed: Any = other.call(
                ListConfigResourcesRequest([CLIENT_METRICS][:version]), version
            )
            names = {each.resource_name for each in listed.config_resources}
            assert name in names
        resource = DescribeConfigsResource(CLIENT_METRICS, name, None)
        described: Any = other.call(DescribeConfigsRequest([resource]))
        found = {each.name: each.value for each in described.results[0].configs}
        assert found == configs
        # What clients are asked for has changed: the next push is told so, and asks again.
        assert subscribe(one, name, {"metrics": "c."}) == 0
        assert push(other, asked) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
        assert ask(other, asked.client_instance_id).requested_metrics == ["c."]
        for wrong in ({"interval.ms": "99"}, {"nope": "1"}):
            assert subscribe(one, name, wrong) == ErrorCode.INVALID_REQUEST
        for wrong in ({"interval.ms": "x"}, {"match": "client_id=("}, {"match": "a"}):
            assert subscribe(one, name, wrong) == ErrorCode.INVALID_CONFIG
        assert subscribe(one, "", {"metrics": "a"}) == ErrorCode.INVALID_REQUEST
        assert unsubscribe(one, name) == 0
        listed = one.call(ListConfigResourcesRequest([CLIENT_METRICS]))
        assert name not in {each.resource_name for each in listed.config_resources}


def test_clients_over_their_quota_are_throttled(broker: Broker, subscribed: str) -> None:
    with Anyone(broker, is_operator=True) as operator:
        set_quota(operator, {"client-id": "pusher"}, request_percentage=0.01)
    with Anyone(broker, client_id="pusher") as client:
        throttled = []

        def is_throttled() -> bool:
            throttled.append(ask(client).throttle_time_ms)
            return throttled[-1] > 0

        wait_until(is_throttled, 60, "a throttle time")


def test_subscriptions_outlive_the_broker(start_moldau: Start) -> None:
    settings = {"moldau.telemetry.enable": "true"}
    first = start_moldau(workers=1, broker=settings)
    with RawClient(first.port) as client:
        assert subscribe(client, "kept", {"metrics": "a.", "interval.ms": "9000"}) == 0
    first.stop()
    second = start_moldau(workers=1, broker=settings, data_dir=first.data_dir)
    with RawClient(second.port) as client:
        assert ask(client).requested_metrics == ["a."]


def test_needs_no_acl(start_moldau: Start) -> None:
    settings = {"moldau.telemetry.enable": "true", "authorizer.class.name": "standard"}
    started = start_moldau(workers=1, broker=settings)
    with RawClient(started.port) as client:
        asked = ask(client)
        assert asked.error_code == 0
        assert push(client, asked, measured(x=1)) == 0
        # Which metrics clients push is for those who may alter the cluster.
        assert subscribe(client, "x", {"metrics": "*"}) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
