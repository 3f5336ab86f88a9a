"""Benchmarks and the load test with TLS and a login."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.brokers.bench import Bench
from tests.support.brokers.running import ROOT, Broker, clean_environment, running_broker
from tests.support.brokers.secured import java_settings, write_settings


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with running_broker(workers=1, secure="true") as started:
        yield started


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str]) -> Bench:
    return Bench(capsys)


def test_each_way_is_measured_beside_the_plain_one(bench: Bench) -> None:
    rows = bench.by_run("security", "--seconds", "0.2", "--repeat", "1", "--size", "1024",
                        "--connections", "2", "--partitions", "2")  # fmt: skip
    assert list(rows) == [
        "heartbeat, plain", "heartbeat, TLS", "produce, plain", "produce, TLS",
        "connect, plain", "connect, login", "connect, TLS", "connect, TLS and login",
    ]  # fmt: skip
    for name, row in rows.items():
        assert row["requests/s"]["median"] > 0, name
        assert row["worker us/req"]["median"] > 0, name
    assert rows["produce, TLS"]["of baseline"] > 0


def test_a_running_broker_is_measured_with_client_settings(bench: Bench, broker: Broker) -> None:
    words = ("--bootstrap", broker.bootstrap, "--seconds", "0.2", "--repeat", "1")
    config = ("--command-config", java_settings(broker))
    for words_of in (("produce", "--size", "1024"), ("connections", "--count", "2")):
        rows = bench.rows(*words_of, *words, *config)
        assert rows
    code, _, complaint = bench.run("produce", *words)
    assert code == 1
    assert "Traceback" not in complaint


def test_locusts_users_log_in(broker: Broker, tmp_path: Path) -> None:
    def run(config: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py", "--headless",
                 "--host", broker.bootstrap, "-u", "3", "-r", "10", "-t", "2s",
                 "--command-config", config, "Producer", "TailReader", "GroupMember"]  # fmt: skip
        return subprocess.run(
            words, cwd=ROOT, env=clean_environment(), capture_output=True, text=True,
            timeout=90, check=False,
        )  # fmt: skip

    done = run(java_settings(broker))
    assert done.returncode == 0, done.stderr
    assert "Produce" in done.stderr + done.stdout
    wrong = run(write_settings(tmp_path / "wrong", broker, "admin", "wrong"))
    assert wrong.returncode == 1
    assert "does not accept user admin" in wrong.stderr
