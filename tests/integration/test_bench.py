"""`moldau bench`: small runs, for what they check and the shape of what they print; never times."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.support.running import Broker


def _bench(*words: str) -> Any:
    command = [sys.executable, "-m", "ops.cli", "bench", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _runs(report: Any) -> dict[str, Any]:
    return {row["run"]: row for row in report["rows"]}


SHORT = ("--seconds", "0.3", "--repeat", "1")


def test_produce_is_measured_against_raw_xadd() -> None:
    runs = _runs(_bench("produce", "--size", "4096", "--partitions", "2", *SHORT))
    assert set(runs) == {"raw XADD", "produce"}
    produce = runs["produce"]
    assert produce["requests/s"]["median"] > 0
    assert produce["worker us/req"]["median"] > 0
    assert produce["store us/req"]["median"] > 0
    assert produce["of baseline"] == pytest.approx(
        produce["MB/s"]["median"] / runs["raw XADD"]["MB/s"]["median"]
    )
    assert produce["MB/s"]["min"] <= produce["MB/s"]["median"] <= produce["MB/s"]["max"]


def test_fetch_is_measured_against_an_echo_and_raw_xrange() -> None:
    small = ("--log-bytes", str(32 << 20), "--tail-cache-bytes", str(8 << 20))
    runs = _runs(_bench("fetch", "--size", "65536", *small, *SHORT))
    assert set(runs) == {"bare uvloop", "tail fetch", "raw XRANGE", "cold fetch"}
    assert runs["tail fetch"]["GB/s of worker CPU"]["median"] > 0
    assert runs["cold fetch"]["store us/req"]["median"] > 0


def test_the_second_hop_is_measured_against_the_direct_way() -> None:
    runs = _runs(_bench("router", "--workers", "2", *SHORT))
    for what in ("heartbeat", "produce"):
        direct = runs[f"{what}, direct"]
        assert direct["requests/s"]["median"] > 0
        assert direct["of baseline"] is None
        for way in ("routed", "bare forwarder"):
            hop = runs[f"{what}, {way}"]
            assert hop["router us/req"]["median"] > direct["router us/req"]["median"]
            assert hop["router kernel us/req"]["median"] >= 0
            assert hop["of baseline"] == pytest.approx(
                hop["MB/s"]["median"] / direct["MB/s"]["median"]
            )


def test_the_coordinator_path_is_measured_with_several_numbers_of_workers() -> None:
    rows = _bench("scaling", "--seconds", "0.2", "--repeat", "1")["rows"]
    assert [(row["run"], row["workers"]) for row in rows] == [
        (f"{what}, {way}", workers)
        for what in ("heartbeat", "commit", "find")
        for way in ("direct", "routed")
        for workers in (1, 2, 4)
    ]
    for row in rows:
        assert row["requests/s"]["median"] > 0
        worker, router = row["worker us/req"]["median"], row["router us/req"]["median"]
        if row["run"].endswith("direct"):
            assert worker > router
        elif row["run"] == "find, routed":  # the router knows, and asks nobody
            assert router > worker
        else:
            assert router > 0 < worker
        if row["run"].startswith("commit"):
            assert row["store us/req"]["median"] > 0


def test_latency_counts_every_record() -> None:
    runs = _runs(_bench("latency", "--rate", "50", "--seconds", "1", "--repeat", "1"))
    assert set(runs) == {"bare uvloop", "record"}
    assert 0 < runs["record"]["p50 ms"]["median"] <= runs["record"]["max ms"]["median"]


def test_a_running_broker_is_measured_by_its_bootstrap_address(moldau: Broker) -> None:
    command = ("produce", "--size", "1024", "--bootstrap", moldau.bootstrap, *SHORT)
    assert _runs(_bench(*command))["produce"]["requests/s"]["median"] > 0


def test_nobody_there_is_one_clear_line() -> None:
    command = [sys.executable, "-m", "ops.cli", "bench", "produce", "--bootstrap", "127.0.0.1:1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr
