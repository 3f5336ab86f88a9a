"""`moldau serve --secure`: from one command to clients that log in, over TLS, with ACLs."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from tests.support.brokers.moldau_cli import Cli, OperatorCli
from tests.support.brokers.running import Broker, running_broker, wait_until
from tests.support.brokers.secured import (
    java_settings,
    librdkafka_settings,
    security_dir,
    write_settings,
)
from tests.support.stores.redis_server import RedisServer

QUIET = {"log_level": "0"}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with running_broker(workers=2, secure="true") as started:
        yield started


@pytest.fixture(scope="module")
def operator(broker: Broker) -> OperatorCli:
    return OperatorCli(broker)


@pytest.fixture(scope="module")
def client(broker: Broker) -> Cli:
    """Asks over TCP."""
    return Cli(broker)


def can_log_in(broker: Broker, **changes: str) -> bool:
    admin = AdminClient({**librdkafka_settings(broker, **changes), **QUIET})
    try:
        admin.list_topics(timeout=10)
    except KafkaException:
        return False
    return True


def produce(settings: dict[str, str], topic: str, value: bytes) -> str | None:
    """The error's name, if there is one."""
    failures: list[str] = []
    producer = Producer({**settings, **QUIET, "message.timeout.ms": "20000"})

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error.name())

    producer.produce(topic, value, on_delivery=delivered)
    producer.flush(30)
    return failures[0] if failures else None


def consume(settings: dict[str, str], topic: str, group: str) -> bytes | str:
    """The first value, or the error's name."""
    consumer = Consumer(
        {**settings, **QUIET, "group.id": group, "auto.offset.reset": "earliest"}
    )  # fmt: skip
    consumer.subscribe([topic])
    try:
        message = consumer.poll(30)
        assert message is not None
        error = message.error()
        return error.name() if error else message.value() or b""
    finally:
        consumer.close()


def test_one_line_on_standard_output_and_where_the_settings_are(broker: Broker) -> None:
    assert broker.ready_line.startswith("moldau ready bootstrap=")
    settings = str(security_dir(broker) / "librdkafka.properties")
    wait_until(lambda: settings in broker.log(), 30, "the log says where the settings are")
    assert librdkafka_settings(broker)["sasl.password"] not in broker.log()
    assert oct(security_dir(broker).stat().st_mode)[-3:] == "700"


def test_no_file_is_readable_by_other_users(broker: Broker) -> None:
    found = [path for path in broker.data_dir.rglob("*") if path.is_file() or path.is_socket()]
    assert len(found) > 8
    assert [path for path in found if path.stat().st_mode & 0o077] == []


def test_the_administrator_produces_and_consumes(broker: Broker) -> None:
    settings = librdkafka_settings(broker)
    assert produce(settings, "by-admin", b"hello") is None
    assert consume(settings, "by-admin", "readers") == b"hello"


def test_kcat_reads_the_same_file(broker: Broker) -> None:
    words = ["kcat", "-F", str(security_dir(broker) / "librdkafka.properties"), "-b",
             broker.bootstrap, "-L", "-t", "by-kcat"]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "2 brokers" in done.stdout


def test_the_tools_log_in_or_are_the_operator(
    broker: Broker, client: Cli, operator: Cli, tmp_path: Path
) -> None:
    config = ("--command-config", java_settings(broker))
    assert client("topics", "create", "by-tools", "--partitions", "3", *config).returncode == 0
    sent = client("produce", "by-tools", *config, typed="one\ntwo\n")
    assert sent.returncode == 0, sent.stderr
    described = operator.json("topics", "describe", "by-tools")["topics"][0]
    assert sum(one["end_offset"] for one in described["partitions"]) == 2
    # Groups are found at their coordinators over their own sockets, too.
    assert operator.json("groups", "list") == client.json("groups", "list", *config)

    without = client.refused("topics", "list")
    assert "--command-config" in without
    wrong = write_settings(tmp_path / "wrong", broker, "admin", "wrong")
    refused = client.refused("topics", "list", "--command-config", wrong)
    assert "does not accept user admin" in refused
    untrusted = tmp_path / "untrusted"
    text = Path(java_settings(broker)).read_text()
    untrusted.write_text("".join(x for x in text.splitlines(True) if "truststore" not in x))
    refused = client.refused("topics", "list", "--command-config", str(untrusted))
    assert "ssl.truststore.location" in refused


def test_users_get_in_do_what_acls_allow_and_are_out_when_removed(
    broker: Broker, operator: Cli
) -> None:
    password = operator.json("users", "add", "alice", "--generate")["password"]
    alice = librdkafka_settings(broker, sasl_username="alice", sasl_password=password)
    operator("topics", "create", "orders-eu")
    assert produce(alice, "orders-eu", b"x") == "TOPIC_AUTHORIZATION_FAILED"
    for words in (
        ("--producer", "--topic", "orders-", "--prefixed"),
        ("--consumer", "--topic", "orders-", "--group", "billing", "--prefixed"),
    ):
        assert operator("acls", "add", "--user", "alice", *words).returncode == 0
    assert produce(alice, "orders-eu", b"x") is None
    assert consume(alice, "orders-eu", "billing") == b"x"
    assert consume(alice, "orders-eu", "others") == "GROUP_AUTHORIZATION_FAILED"

    def is_out() -> bool:
        return not can_log_in(broker, sasl_username="alice", sasl_password=password)

    assert not is_out()
    removed = operator("users", "remove", "alice")
    assert removed.returncode == 0
    # Who is called alice later would have these rights.
    assert "ACLs that still name alice: 5." in removed.stderr
    operator("acls", "remove", "--user", "alice", "--yes")
    wait_until(is_out, 30, "alice cannot log in any more")


def test_reloading_the_configuration_changes_nothing(broker: Broker) -> None:
    before = {path: path.read_bytes() for path in security_dir(broker).iterdir()}
    os.kill(broker.pid, signal.SIGHUP)
    wait_until(lambda: "configuration reloaded" in broker.log(), 30, "it is reloaded")
    assert {path: path.read_bytes() for path in security_dir(broker).iterdir()} == before
    assert can_log_in(broker)


def test_a_second_start_overwrites_nothing(start_moldau: Callable[..., Broker]) -> None:
    first = start_moldau(workers=1, secure="true")
    before = {path: path.read_bytes() for path in security_dir(first).iterdir()}
    OperatorCli(first)("users", "passwd", "admin", "--password-stdin", typed="changed\n")
    first.stop()
    second = start_moldau(workers=1, secure="true", data_dir=first.data_dir)
    assert {path: path.read_bytes() for path in security_dir(second).iterdir()} == before
    assert not can_log_in(second)
    assert can_log_in(second, sasl_password="changed")


def test_an_administrator_who_was_removed_stays_removed(
    start_moldau: Callable[..., Broker],
) -> None:
    first = start_moldau(workers=1, secure="true")
    OperatorCli(first)("users", "remove", "admin")
    first.stop()
    second = start_moldau(workers=1, secure="true", data_dir=first.data_dir)
    assert not can_log_in(second)
    assert "admin" not in OperatorCli(second)("users", "list").stdout


def test_an_external_redis_has_the_administrator_too(
    start_moldau: Callable[..., Broker], server: RedisServer
) -> None:
    broker = start_moldau(workers=1, secure="true", redis=server.url, advertise="router")
    assert can_log_in(broker)
    settings = librdkafka_settings(broker)
    assert produce(settings, "elsewhere", b"hello") is None
    assert consume(settings, "elsewhere", "readers") == b"hello"
