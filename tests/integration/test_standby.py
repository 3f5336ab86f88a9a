"""What a standby says of itself, and what keeps one from standing by. Takeovers are in chaos/."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis as redis_py

from moldau.ops.serve.control import ask_status
from moldau.testing.serve import BrokerFailed
from tests.support.brokers.running import (
    Broker,
    free_ports,
    run_moldau,
    wait_until,
)
from tests.support.brokers.standby import Host
from tests.support.stores.redis_server import RedisServer, running_redis

Start = Callable[..., Broker]
PATIENCE_S = 60


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RedisServer]:
    with running_redis(tmp_path / "redis") as started:
        yield started


def fetched(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def test_what_a_standby_says_until_it_serves(store: RedisServer, start_moldau: Start) -> None:
    first = start_moldau(workers=1, redis=store.url)
    http = f"127.0.0.1:{free_ports(1)}"
    second = Host(start_moldau, 2, store.url, workers=1, http=http)
    assert second.broker.ready_line.startswith(f"moldau standby port={second.broker.port} ")
    env = {"MOLDAU_RUNTIME_DIR": str(second.broker.directory / "run")}
    said = run_moldau("status", "--port", str(second.broker.port), env=env)
    assert said.returncode == 0, said.stderr
    assert f"process {first.pid} on " in said.stdout
    assert "standby" in said.stdout
    assert second.lease["role"] == "standby"
    assert second.lease["holder"]["port"] == first.port

    def is_there() -> bool:
        try:
            return fetched(f"http://{http}/livez") == (200, "ok\n")
        except OSError:
            return False

    wait_until(is_there, PATIENCE_S, "it is alive")
    status, text = fetched(f"http://{http}/readyz")
    assert status == 503
    assert text.startswith("standby: ")
    assert f"port {first.port}" in text
    status, text = fetched(f"http://{http}/healthz")
    assert status == 503
    assert '"role":"standby"' in text
    assert "moldau_up" in fetched(f"http://{http}/metrics")[1]
    with socket.socket() as client:  # clients go elsewhere
        assert client.connect_ex((second.address, second.broker.port)) != 0

    assert first.stop() == 0
    second.until_serving()
    wait_until(lambda: fetched(f"http://{http}/readyz")[0] == 200, PATIENCE_S, "it is ready")
    assert second.lease["role"] == "holder"
    said = run_moldau("status", "--port", str(second.broker.port), env=env)
    assert "holder for" in said.stdout


def test_a_standby_ends_when_it_is_asked_to(store: RedisServer, start_moldau: Start) -> None:
    first = start_moldau(workers=1, redis=store.url)
    second = Host(start_moldau, 2, store.url, workers=1)
    assert second.broker.stop() == 0, second.broker.log()
    with redis_py.from_url(store.url) as client:
        holder = client.get("moldau:serving")
    assert holder is not None
    assert str(first.pid).encode() in holder
    assert ask_status(first.directory / "run" / f"{first.port}.sock")["lease"]["role"] == "holder"


def test_a_standby_over_an_embedded_store_is_wrong_usage() -> None:
    refused = run_moldau("serve", "--standby", "--port", str(free_ports(3)))
    assert refused.returncode == 2
    assert "--standby needs --redis" in refused.stderr


def test_a_standby_that_could_not_serve_fails_at_its_start(
    store: RedisServer, start_moldau: Start
) -> None:
    start_moldau(workers=1, redis=store.url)
    port = free_ports(2)
    options = {"redis": store.url, "standby": "true", "workers": 1, "port": port}
    with (
        socket.create_server(("127.0.0.1", port + 1)),
        pytest.raises(BrokerFailed, match=f"port {port + 1} .* is taken"),
    ):
        start_moldau(**options)
    with redis_py.from_url(store.url) as client:
        known = client.get("moldau:format")
        client.set("moldau:format", "99 9.9.9")
        with pytest.raises(BrokerFailed, match=r"it needs Moldau 9\.9\.9 or newer") as refused:
            start_moldau(**options)
        assert refused.value.exit_code == 3
        client.set("moldau:format", known or b"")
    with pytest.raises(BrokerFailed, match="no store at"):
        start_moldau(**{**options, "redis": "redis://127.0.0.1:1"})


def test_a_version_without_leases_is_waited_for(store: RedisServer, start_moldau: Start) -> None:
    with redis_py.from_url(store.url) as client:
        holder = '{"host":"elsewhere","pid":7,"port":9092,"since":1.5}'
        client.set("moldau:serving", holder, px=600_000)
        second = Host(start_moldau, 2, store.url, workers=1)
        wait_until(lambda: second.lease["holder"] is not None, PATIENCE_S, "it knows who serves")
        assert second.lease["holder"]["host"] == "elsewhere"
        assert second.state == "standby"
        client.delete("moldau:serving")
        second.until_serving()


def test_doctor_as_a_command(store: RedisServer, start_moldau: Start) -> None:
    broker = start_moldau(workers=1, redis=store.url)
    env = {"MOLDAU_RUNTIME_DIR": str(broker.directory / "run")}
    words = ("--redis", store.url, "--port", str(broker.port), "--workers", "1")
    said = run_moldau("doctor", *words, env=env)
    assert said.returncode == 0, said.stdout + said.stderr
    assert "a broker of this user serves" in said.stdout
    assert "append-only file" in said.stdout  # this store has none
    said = run_moldau("doctor", *words, "--advertised-host", "nowhere.invalid", "--json", env=env)
    assert said.returncode == 1
    assert '"faults": 1' in said.stdout
    assert "nowhere.invalid does not resolve" in said.stdout
    said = run_moldau("doctor", "--workers", "none")
    assert said.returncode == 1
    assert "--workers: expected a whole number" in said.stdout
