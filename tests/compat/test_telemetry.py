"""librdkafka pushes its own metrics where the broker asks for them (KIP-714): they are in /metrics
and beside the members of its group. A broker that does not ask gets none."""

from __future__ import annotations

import html
import re
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from tests.support.brokers.running import Broker, free_ports, running_broker, wait_until
from tests.support.brokers.sasl_broker import SHA_256, sasl_broker
from tests.support.pages.console import Pages
from tests.support.raw.client import RawClient
from tests.support.raw.telemetry import subscribe

EVIL = "<script>alert(1)</script>\"'"
# What the client calls itself; another name would be another client.
SOFTWARE = 'client_software_name="confluent-kafka-python"'
ALL_OF_IT = {"interval.ms": "500", "metrics": "*"}
Start = Callable[..., Broker]


def telemetry(**settings: object) -> dict[str, object]:
    return {"moldau.telemetry.enable": "true", "group.initial.rebalance.delay.ms": 10, **settings}


@pytest.fixture(scope="module", params=["workers", "router"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    http = f"127.0.0.1:{free_ports(1)}"
    options = {"workers": 2, "http": http, "advertise": request.param}
    with running_broker(broker=telemetry(), **options) as started:
        wait_until(lambda: started.processes("http")[0]["state"] == "running", 60, "it serves")
        with RawClient(started.port) as client:
            assert subscribe(client, "everything", ALL_OF_IT) == 0
        yield started


def series(broker: Broker, name: str, *labels: str) -> list[float]:
    """The values of a metric with all of these labels."""
    _, text, _ = Pages(broker).request("GET", "/metrics")
    found = re.findall(rf"^{name}({{.*}})? (\S+)$", text, re.MULTILINE)
    return [float(value) for given, value in found if all(each in given for each in labels)]


def requests(broker: Broker) -> float:
    """How many GetTelemetrySubscriptions and PushTelemetry there were."""
    return sum(
        sum(series(broker, "moldau_kafka_requests_total", f'api="{api}"'))
        for api in ("GetTelemetrySubscriptions", "PushTelemetry")
    )


def consume(config: dict[str, Any], topic: str, records: int) -> Consumer:
    consumer = Consumer({**config, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    for _ in range(records):
        message = consumer.poll(60)
        assert message is not None
        assert message.error() is None
    return consumer


def produce(config: dict[str, Any], topic: str, records: int) -> Producer:
    producer = Producer(config)
    for _ in range(records):
        producer.produce(topic, b"x" * 100)
    assert producer.flush(60) == 0
    return producer


def test_what_producers_and_consumers_measure_is_shown(broker: Broker) -> None:
    name = f"t-{uuid.uuid4().hex[:8]}"
    config = {"bootstrap.servers": broker.bootstrap}
    producer = produce({**config, "client.id": f"{name}-p"}, name, 50)
    consumer = consume({**config, "client.id": f"{name}-c", "group.id": name}, name, 50)
    try:
        ours = (f'client_id="{name}-c"', SOFTWARE, f'consumergroup="{name}"')

        def is_measured() -> bool:
            consumer.poll(0.1)
            idle = series(broker, "moldau_client_consumer_poll_idle_ratio_avg", *ours)
            assigned = series(
                broker, "moldau_client_consumer_coordinator_assigned_partitions", *ours
            )
            return len(idle) == 1 and 0 < idle[0] <= 1 and assigned == [1]

        wait_until(is_measured, 60, "the consumer's metrics")
        theirs = (f'client_id="{name}-p"', SOFTWARE, 'client_host="127.0.0.1"')
        wait_until(
            lambda: sum(
                series(broker, "moldau_client_producer_node_request_latency_max", *theirs)
            ) > 0,
            60,
            "the producer's metrics",
        )  # fmt: skip
        assert series(broker, "moldau_client_producer_connection_creation_total", *theirs)
        page = Pages(broker).get(f"/groups/{name}")
        row = re.search(rf"<tr>(?:(?!<tr>).)*{name}-c.*?confluent-kafka-python.*?</tr>", page, re.S)
        assert row is not None
        assert re.search(r"\d+%.*\d ms.* values</a>", row[0])
        (link,) = re.findall(r'href="([^"]+/measures\?[^"]+)"', page)
        values = Pages(broker).get(html.unescape(link))
        assert "consumer.coordinator.rebalance.latency.avg" in values
    finally:
        consumer.close()
    assert producer.flush(60) == 0


def test_what_clients_call_themselves_does_nothing(broker: Broker) -> None:
    name = f"t-{uuid.uuid4().hex[:8]}"
    config = {"bootstrap.servers": broker.bootstrap, "client.id": EVIL}
    produce(config, name, 1)
    consumer = consume({**config, "group.id": name}, name, 1)
    try:

        def page() -> str:
            consumer.poll(0.1)
            return Pages(broker).get(f"/groups/{name}")

        wait_until(lambda: "measures?" in page(), 60, "a measure")
        assert EVIL not in page()
        assert html.escape(EVIL, quote=False)[:20] in page()
        label = 'client_id="<script>alert(1)</script>\\"\''
        assert series(broker, "moldau_client_consumer_poll_idle_ratio_avg", label)
    finally:
        consumer.close()


@pytest.mark.parametrize("advertised", ["workers", "router"])
def test_a_client_that_logs_in_says_what_it_is_too(advertised: str) -> None:
    """ApiVersions comes before the login, at a worker's own port and at the router."""
    settings = telemetry(**{"authorizer.class.name": "standard", "super.users": "User:alice"})
    http = f"127.0.0.1:{free_ports(1)}"
    with sasl_broker(settings, http=http, advertise=advertised) as sasl:
        broker = sasl.broker
        wait_until(lambda: broker.processes("http")[0]["state"] == "running", 60, "it serves")
        with sasl.operator() as operator:
            match = "client_software_name=confluent-kafka-python"
            assert subscribe(operator, "rdkafka", {**ALL_OF_IT, "match": match}) == 0
        config = {
            "bootstrap.servers": f"127.0.0.1:{sasl.port('router')}",
            "client.id": "secured",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": SHA_256,
            "sasl.username": "alice",
            "sasl.password": "secret",
        }
        producer = produce(config, "secured", 5)
        name = "moldau_client_producer_connection_creation_total"
        labels = 'client_id="secured"', SOFTWARE
        wait_until(lambda: bool(series(broker, name, *labels)), 60, "the producer's metrics")
        assert producer.flush(60) == 0


def test_off_clients_send_nothing(start_moldau: Start) -> None:
    """Asked for by the client all the same: `enable.metrics.push` is true by default."""
    broker = start_moldau(workers=1, http=f"127.0.0.1:{free_ports(1)}")
    wait_until(lambda: broker.processes("http")[0]["state"] == "running", 60, "it serves")
    config = {"bootstrap.servers": broker.bootstrap, "enable.metrics.push": True}
    produce(config, "quiet", 5)
    consume({**config, "group.id": "quiet"}, "quiet", 5).close()
    assert series(broker, "moldau_kafka_requests_total", 'api="Produce"')
    assert requests(broker) == 0
    _, text, _ = Pages(broker).request("GET", "/metrics")
    assert "moldau_client_" not in text
    assert "moldau_telemetry" not in text
