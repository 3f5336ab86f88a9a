"""The HTTP process: metrics and health of a running broker, which does not depend on it."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis
import yaml
from confluent_kafka import Consumer, Producer, TopicPartition

from moldau import ops
from moldau.ops.docs.tables import metrics_of
from moldau.ops.http.app import MAX_REQUESTS_OF_ADDRESS
from tests.support.brokers.moldau_cli import Cli
from tests.support.brokers.running import Broker, free_ports, running_broker, wait_until
from tests.support.stores.gaps import fill_with_gap

Start = Callable[..., Broker]
Sample = dict[tuple[tuple[str, str], ...], float]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with running_broker(workers=2, http=f"127.0.0.1:{free_ports(1)}") as started:
        yield started


def address(broker: Broker) -> tuple[str, int]:
    match = re.search(r" http=http://([\d.]+):(\d+)$", broker.ready_line)
    assert match is not None, broker.ready_line
    return match[1], int(match[2])


def get(broker: Broker, path: str, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection(*address(broker), timeout=30)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def metrics(broker: Broker, name: str) -> Sample:
    """The samples of a metric by their labels."""
    status, text = get(broker, "/metrics")
    assert status == 200
    found: Sample = {}
    for line in text.splitlines():
        match = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
        if match is not None and match[1] == name:
            labels = re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match[2] or "")
            found[tuple(sorted(labels))] = float(match[3])
    return found


def test_health(broker: Broker) -> None:
    assert get(broker, "/livez") == (200, "ok\n")
    assert get(broker, "/readyz") == (200, "ok\n")
    status, text = get(broker, "/healthz")
    facts = json.loads(text)
    assert (status, facts["status"]) == (200, "ok")
    assert {each["role"] for each in facts["processes"]} >= {"worker", "router", "store", "http"}
    assert get(broker, "/readyz", "POST")[0] == 405


def test_metrics_of_topics_and_groups_have_the_names_of_kafka_exporter(broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    hour_ago = int(time.time() * 1000) - 3_600_000
    for number in range(10):
        producer.produce("orders", str(number), partition=0, timestamp=hour_ago)
    assert producer.flush(30) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "billing",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["orders"])
    for _ in range(4):
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None
    consumer.commit(asynchronous=False)
    try:
        of_partition = (("partition", "0"), ("topic", "orders"))
        assert metrics(broker, "kafka_topic_partition_current_offset")[of_partition] == 10
        committed = (("consumergroup", "billing"), *of_partition)
        assert metrics(broker, "kafka_consumergroup_current_offset")[committed] == 4
        assert metrics(broker, "kafka_consumergroup_lag")[committed] == 6
        age = metrics(broker, "moldau_consumergroup_lag_seconds")
        assert 3600 <= age[(("consumergroup", "billing"), ("topic", "orders"))] < 7200
        assert metrics(broker, "kafka_consumergroup_members") == {
            (("consumergroup", "billing"),): 1
        }
        assert metrics(broker, "moldau_process_resident_memory_bytes")
    finally:
        consumer.close()


def test_lag_in_seconds_of_records_that_are_not_in_memory(broker: Broker) -> None:
    """Restarted workers read it from the store; it is 0 once everything is committed."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
    now = int(time.time() * 1000)
    for hours in (3, 2, 1):
        producer.produce("old", b"x", partition=0, timestamp=now - hours * 3_600_000)
        assert producer.flush(30) == 0  # a batch each
    admin = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "archive"})
    labels = (("consumergroup", "archive"), ("topic", "old"))

    def hours_behind() -> float | None:
        found = metrics(broker, "moldau_consumergroup_lag_seconds").get(labels)
        return None if found is None else round(found / 3600, 1)

    try:
        for index in range(2):
            broker.wait_restarted("worker", index, broker.kill("worker", index))
        admin.commit(offsets=[TopicPartition("old", 0, 1)], asynchronous=False)
        wait_until(lambda: hours_behind() == 2, 60, "known")
        admin.commit(offsets=[TopicPartition("old", 0, 3)], asynchronous=False)
        wait_until(lambda: hours_behind() == 0, 60, "nothing is waited for")
    finally:
        admin.close()


def test_lag_is_the_same_wherever_it_is_shown_after_a_lost_tail(broker: Broker) -> None:
    """Offsets 0 to 5 and 1000 to 1003 have records; the group has committed offset 4."""
    cli = Cli(broker)
    cli.json("topics", "create", "gapped", "--partitions", "1")
    with redis.from_url(broker.store_url) as store:
        fill_with_gap(store, "gapped")
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "reader"})
    try:
        consumer.commit(offsets=[TopicPartition("gapped", 0, 4)], asynchronous=False)
        assert consumer.get_watermark_offsets(TopicPartition("gapped", 0), 30) == (0, 1004)
    finally:
        consumer.close()
    labels = (("consumergroup", "reader"), ("partition", "0"), ("topic", "gapped"))

    def of_metrics() -> float | None:
        return metrics(broker, "kafka_consumergroup_lag").get(labels)

    wait_until(lambda: of_metrics() is not None, 60, "the leader has loaded the log")
    (described,) = cli.json("groups", "describe", "reader")["groups"]
    (shown,) = [each for each in cli.json("top", "--once")["groups"] if each["group"] == "reader"]
    row = re.search(r">reader</a>.*?</tr>", get(broker, "/groups")[1], re.DOTALL)
    assert row is not None
    listed = re.findall(r'<td class="number">(.*?)</td>', row[0])[1]
    assert (described["total_lag"], shown["lag"], listed, of_metrics()) == (6, 6, "6", 6)


def test_the_broker_is_untouched_when_the_http_process_dies(broker: Broker) -> None:
    pids = broker.pids("worker") + broker.pids("router")
    wait_until(lambda: broker.processes("http")[0]["state"] == "running", 60, "it serves")
    broker.wait_restarted("http", 0, broker.kill("http"))
    assert get(broker, "/livez") == (200, "ok\n")
    assert broker.pids("worker") + broker.pids("router") == pids


def test_a_worker_that_hangs_is_not_up_and_does_not_hold_up_the_metrics(broker: Broker) -> None:
    stopped = broker.kill("worker", 0, signal.SIGSTOP)  # the supervisor replaces it after a while
    zero, one = ((("index", index), ("role", "worker")) for index in "01")
    # The console may have asked all processes just before: that answer is shared.
    wait_until(lambda: metrics(broker, "moldau_up")[zero] == 0, 60, "it is not up")
    assert metrics(broker, "moldau_up")[one] == 1
    broker.wait_restarted("worker", 0, stopped)
    wait_until(lambda: get(broker, "/readyz")[0] == 200, 60, "ready again")


def test_not_ready_while_the_store_is_down(start_moldau: Start) -> None:
    broker = start_moldau(workers=1, http=f"127.0.0.1:{free_ports(1)}")
    wait_until(lambda: get(broker, "/readyz")[0] == 200, 60, "ready")
    broker.kill("store", 0, signal.SIGSTOP)
    broker.kill("worker", 0)
    wait_until(lambda: get(broker, "/readyz")[0] == 503, 60, "not ready")
    assert get(broker, "/livez")[0] == 200
    broker.kill("store", 0, signal.SIGCONT)
    wait_until(lambda: get(broker, "/readyz")[0] == 200, 60, "ready again")


def test_half_sent_requests_hold_up_nobody(broker: Broker) -> None:
    with ExitStack() as opened:
        for _ in range(300):
            half = opened.enter_context(socket.create_connection(address(broker), 30))
            half.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        for path in ("/livez", "/readyz", "/metrics", "/", "/topics"):
            assert get(broker, path)[0] == 200, path
        half.settimeout(60)
        assert half.recv(1) == b""  # it is closed after a while


def test_health_is_answered_while_the_console_is_busy(broker: Broker) -> None:
    with ExitStack() as opened:
        for _ in range(MAX_REQUESTS_OF_ADDRESS):
            form = opened.enter_context(socket.create_connection(address(broker), 30))
            cookie = f"moldau_console_{broker.port}=x"
            head = f"POST /topics HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: {cookie}\r\n"
            form.sendall(f"{head}Content-Length: 9\r\n\r\n".encode())
        wait_until(lambda: get(broker, "/topics")[0] == 503, 20, "the console is busy")
        for path in ("/livez", "/readyz", "/metrics"):
            assert get(broker, path)[0] == 200, path
    wait_until(lambda: get(broker, "/topics")[0] == 200, 60, "it is not busy any more")
    assert "Traceback" not in broker.log()


def test_an_address_that_is_taken_costs_a_warning(start_moldau: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        broker = start_moldau(workers=1, http=f"127.0.0.1:{port}")
    assert " http=" not in broker.ready_line
    assert f"port {port}" in broker.log()
    assert broker.pids("http") == []


def test_off(start_moldau: Start) -> None:
    broker = start_moldau(workers=1, http="off")
    assert " http=" not in broker.ready_line
    assert broker.pids("http") == []


MONITORING = Path(ops.__path__[0]) / "monitoring"
# Shown only where there is something to show: a limit, a security feature.
CONDITIONAL: set[str] = set()


def expressions() -> list[str]:
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    found = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    rules = yaml.safe_load((MONITORING / "alerts.yml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            assert rule["annotations"]["summary"]
            assert rule["annotations"]["remedy"]
            found.append(rule["expr"])
    return found


def test_dashboard_and_alerts_name_metrics_that_exist(broker: Broker) -> None:
    _, text = get(broker, "/metrics")
    known = set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
    for expression in expressions():
        named = re.findall(r"\b(?:moldau|kafka)_\w+", expression)
        assert named, expression
        for name in named:
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            assert name in known or base in known or name in CONDITIONAL, name


def test_the_page_of_metrics_lists_those_that_there_are(broker: Broker) -> None:
    page = (Path(ops.__path__[0]) / "docs/reference/metrics.md").read_text()
    listed = set(re.findall(r"^\| `(\w+)` \| ", page, re.MULTILINE))
    _, text = get(broker, "/metrics")
    assert set(metrics_of(text)) <= listed, "ops/docs/tables.py writes the page"


def test_there_is_an_alert_for_each_way_a_broker_fails() -> None:
    rules = yaml.safe_load((MONITORING / "alerts.yml").read_text())
    watched = " ".join(rule["expr"] for group in rules["groups"] for rule in group["rules"])
    for metric in (
        "moldau_up",
        "moldau_store_memory_bytes",
        "kafka_consumergroup_lag_sum",
        "moldau_consumergroup_rebalances_total",
        "moldau_tls_certificate_expires_at_timestamp_seconds",
        "moldau_authentications_total",
        "moldau_append_conflicts_total",
        "moldau_store_fsyncs_pending",
        "moldau_store_disk_free_bytes",
        "moldau_store_disk_refuses_writes",
        "moldau_store_last_write_failed",
    ):
        assert metric in watched


def test_requests_are_counted_and_timed(broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for _ in range(20):
        producer.produce("measured", b"x" * 100, partition=0)
        assert producer.flush(30) == 0
    sums: dict[str, float] = {}
    for name, api in (
        ("moldau_kafka_requests_total", "Produce"),
        ("moldau_kafka_request_duration_seconds_count", "Produce"),
    ):
        found = metrics(broker, name)
        sums[name] = sum(value for labels, value in found.items() if ("api", api) in labels)
    assert min(sums.values()) >= 20
    records = metrics(broker, "moldau_topic_records_in_total")
    assert sum(v for labels, v in records.items() if ("topic", "measured") in labels) == 20
    assert sum(metrics(broker, "moldau_append_duration_seconds_count").values()) >= 20
    assert sum(metrics(broker, "moldau_store_memory_bytes").values()) > 0
    Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "x"}).list_topics("no-such", 30)
    errors = metrics(broker, "moldau_kafka_request_errors_total")
    assert any(("error", "UNKNOWN_TOPIC_OR_PARTITION") in labels for labels in errors)
