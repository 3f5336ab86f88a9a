"""`moldau bench native`: a short run, for what it checks and the form of the results."""

from __future__ import annotations

import pytest

from tests.support.brokers.bench import SHORT, Bench

RUNS = ["raw XADD", "produce", "raw XREADGROUP", "group fetch"]


def test_native_topics_are_measured_against_what_redis_applications_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sizes = ("--size", "100", "--size", "5000", "--partitions", "2")
    report = Bench(capsys).report("native", *sizes, *SHORT)
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
