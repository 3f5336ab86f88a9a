"""`moldau bench native`: a small run, for what it checks and the shape of what it prints."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

RUNS = ["raw XADD", "produce", "raw XREADGROUP", "group fetch"]


def test_native_topics_are_measured_against_what_redis_applications_do() -> None:
    words = ["native", "--size", "100", "--size", "5000", "--partitions", "2", "--repeat", "1"]
    command = [sys.executable, "-m", "ops.cli", "bench", *words, "--seconds", "0.3", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["bench"] == "native"
    rows = report["rows"]
    assert [(row["size"], row["run"]) for row in rows] == [
        (size, run) for size in (100, 5000) for run in RUNS
    ]
    for row in rows:
        assert row["records/s"]["median"] > 0
        assert row["store us/record"]["median"] > 0
        assert row["MB/s"]["median"] == pytest.approx(
            row["records/s"]["median"] * row["size"] / 1e6
        )
    for raw, ours in (rows[0:2], rows[2:4], rows[4:6], rows[6:8]):
        assert raw["of baseline"] is None
        assert raw["worker us/record"]["median"] < ours["worker us/record"]["median"]
        assert ours["of baseline"] == pytest.approx(
            ours["records/s"]["median"] / raw["records/s"]["median"]
        )
