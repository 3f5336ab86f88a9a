"""An external store by URL: a password, a database, TLS, a unix socket."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from moldau.broker.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from moldau.testing.serve import BrokerFailed
from tests.support.brokers.running import Broker, free_ports, wait_until
from tests.support.raw.client import RawClient
from tests.support.stores.redis_server import SEARCH_PATH

Start = Callable[..., Broker]


def _round_trip(broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(100):
        producer.produce("trip", str(number))
    assert producer.flush(20) == 0
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "any"})
    consumer.assign([TopicPartition("trip", 0, OFFSET_BEGINNING)])
    values: list[bytes] = []
    deadline = time.monotonic() + 60
    while len(values) < 100 and time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            values.append(message.value() or b"")
    consumer.close()
    assert values == [str(number).encode() for number in range(100)]


def _capacity(broker: Broker) -> tuple[int, int]:
    with RawClient(broker.port) as client:
        (answer,) = client.call(DescribeLogDirsRequest(topics=None)).results
    assert answer.error_code == 0
    return answer.total_bytes, answer.usable_bytes


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: no certificate can be made")
    key, made = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-keyout", str(key), "-out", str(made), "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    return key, made


@pytest.fixture
def tls_store(tmp_path: Path, certificate: tuple[Path, Path]) -> Iterator[str]:
    program = shutil.which("redis-server", path=SEARCH_PATH)
    if program is None:
        pytest.skip("redis-server is not installed, and the embedded one is built without TLS")
    key, made = certificate
    port = free_ports(1)
    directory = tmp_path / "redis"
    directory.mkdir()
    process = subprocess.Popen(
        [
            *(program, "--port", "0", "--tls-port", str(port), "--bind", "127.0.0.1"),
            *("--tls-cert-file", str(made), "--tls-key-file", str(key)),
            *("--tls-ca-cert-file", str(made), "--tls-auth-clients", "no"),
            *("--requirepass", "s3cret", "--save", "", "--appendonly", "yes"),
            *("--dir", str(directory), "--logfile", str(directory / "log")),
        ]
    )
    url = f"rediss://:s3cret@localhost:{port}/2?ssl_ca_certs={made}"
    deadline = time.monotonic() + 60
    while True:
        try:
            with redis.from_url(url) as client:
                client.ping()
            break
        except redis.exceptions.ConnectionError:
            assert process.poll() is None, (directory / "log").read_text()
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.05)
    yield url
    process.kill()
    process.wait()


def test_tls_password_and_database(start_moldau: Start, tls_store: str) -> None:
    broker = start_moldau(redis=tls_store)
    _round_trip(broker)
    with redis.from_url(tls_store) as client:
        assert client.xlen("moldau:trip:0") > 0
        of_its_machine = client.info("memory")["total_system_memory"]
        total, usable = _capacity(broker)
        assert total == of_its_machine
        assert 0 < usable < total
        limit = 64 << 20
        client.config_set("maxmemory", limit)
        total, usable = _capacity(broker)
        assert total == limit
        assert 0 < usable < total
    assert "s3cret" not in broker.log()
    assert "s3cret" not in broker.ready_line


@pytest.fixture
def tls_sentinel(tmp_path: Path, certificate: tuple[Path, Path], tls_store: str) -> Iterator[str]:
    """The same store behind a sentinel, which has no password."""
    program = shutil.which("redis-server", path=SEARCH_PATH)
    assert program is not None
    key, made = certificate
    port = free_ports(1)
    conf = tmp_path / "sentinel.conf"
    conf.write_text(
        f"port 0\ntls-port {port}\nbind 127.0.0.1\n"
        f"dir {tmp_path}\nlogfile {tmp_path}/sentinel.log\n"
        f"tls-cert-file {made}\ntls-key-file {key}\ntls-ca-cert-file {made}\n"
        "tls-auth-clients no\ntls-replication yes\n"
        f"sentinel monitor main 127.0.0.1 {urlsplit(tls_store).port} 1\n"
        "sentinel auth-pass main s3cret\n"
    )
    process = subprocess.Popen([program, str(conf), "--sentinel"], stdout=subprocess.DEVNULL)
    with redis.Redis("localhost", port, ssl=True, ssl_ca_certs=str(made)) as client:
        wait_until(lambda: _is_watching(client), 30, "the sentinel watches the store")
    yield f"rediss+sentinel://:s3cret@localhost:{port}/main/2?ssl_ca_certs={made}"
    process.kill()
    process.wait()


def _is_watching(sentinel: redis.Redis) -> bool:
    try:
        masters: Any = sentinel.sentinel_masters()
    except redis.exceptions.ConnectionError:
        return False
    return bool(masters["main"]["flags"] == "master")


def test_tls_through_a_sentinel(start_moldau: Start, tls_store: str, tls_sentinel: str) -> None:
    broker = start_moldau(redis=tls_sentinel)
    _round_trip(broker)
    with redis.from_url(tls_store) as client:
        assert client.xlen("moldau:trip:0") > 0
    assert "s3cret" not in broker.log()
    assert "s3cret" not in broker.ready_line
    assert "has no replicas: nothing can take over" in broker.log()


def test_a_certificate_of_an_unknown_authority_is_refused(
    start_moldau: Start, tls_store: str
) -> None:
    with pytest.raises(BrokerFailed) as caught:
        start_moldau(redis=tls_store.partition("?")[0])
    assert "certificate" in str(caught.value).lower()
    assert "s3cret" not in str(caught.value)
