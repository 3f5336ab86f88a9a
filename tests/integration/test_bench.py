"""`moldau bench`: short runs, for what they check and the form of the results; never times."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers.bench import SHORT, Bench
from tests.support.brokers.running import Broker
from tests.support.compat.grouping import quick_broker


@pytest.fixture(scope="module")
def moldau() -> Iterator[Broker]:
    yield from quick_broker()


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str]) -> Bench:
    return Bench(capsys)


# --- each benchmark ---


def test_produce_is_measured_against_raw_xadd(bench: Bench) -> None:
    runs = bench.by_run("produce", "--size", "4096", "--partitions", "2", *SHORT)
    assert set(runs) == {"raw XADD", "produce"}
    produce = runs["produce"]
    assert produce["requests/s"]["median"] > 0
    assert produce["worker us/req"]["median"] > 0
    assert produce["store us/req"]["median"] > 0
    parts = sum(produce[f"{role} us/req"]["median"] for role in ("worker", "store"))
    assert produce["broker us/req"]["median"] >= parts
    assert produce["of baseline"] == pytest.approx(
        produce["MB/s"]["median"] / runs["raw XADD"]["MB/s"]["median"]
    )
    assert produce["MB/s"]["min"] <= produce["MB/s"]["median"] <= produce["MB/s"]["max"]
    assert produce["worker MB"]["median"] > 1
    assert produce["store MB"]["median"] > 1
    parts = sum(produce[f"{role} MB"]["median"] for role in ("worker", "store"))
    assert produce["broker MB"]["median"] > parts


def test_fetch_is_measured_against_an_echo_and_raw_xrange(bench: Bench) -> None:
    small = ("--log-bytes", str(16 << 20), "--tail-cache-bytes", str(4 << 20))
    runs = bench.by_run("fetch", "--size", "65536", *small, *SHORT)
    assert set(runs) == {"bare uvloop", "tail fetch", "raw XRANGE", "cold fetch"}
    assert runs["tail fetch"]["GB/s of worker CPU"]["median"] > 0
    assert runs["cold fetch"]["store us/req"]["median"] > 0


def test_catching_up_reads_every_log_to_its_end(bench: Bench) -> None:
    small = ("--log-bytes", str(24 << 20), "--tail-cache-bytes", str(4 << 20))
    runs = bench.by_run("catchup", "--workers", "2", *small, *SHORT)
    assert set(runs) == {"raw XRANGE", "catch-up"}
    assert runs["catch-up"]["requests/s"]["median"] > 0
    assert runs["catch-up"]["of baseline"] > 0


def test_the_second_hop_is_measured_against_the_direct_way(bench: Bench) -> None:
    runs = bench.by_run("router", "--workers", "2", *SHORT)
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


def test_the_coordinator_path_is_measured_with_several_numbers_of_workers(bench: Bench) -> None:
    rows = bench.rows("scaling", "--connections", "4", *SHORT)
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
        elif row["run"] == "find, routed":
            assert router > 0  # it answers itself
        else:
            assert router > 0 < worker
        if row["run"].startswith("commit"):
            assert row["store us/req"]["median"] > 0


def test_latency_counts_every_record(bench: Bench) -> None:
    runs = bench.by_run("latency", "--rate", "100", *SHORT)
    assert set(runs) == {"bare uvloop", "record"}
    assert 0 < runs["record"]["p50 ms"]["median"] <= runs["record"]["max ms"]["median"]
    assert runs["record"]["worker us/record"]["median"] > 0


def test_connections_are_measured_against_a_bare_server(bench: Bench) -> None:
    rows = bench.rows("connections", "--count", "3", "--count", "150", *SHORT)
    assert [(row["connections"], row["run"]) for row in rows] == [
        (count, way) for count in (3, 150) for way in ("bare uvloop", "direct", "routed")
    ]
    for row in rows:
        for name in ("8 active", "all active"):
            assert row[f"requests/s, {name}"]["median"] > 0
            assert row[f"worker us/req, {name}"]["median"] > 0
            if row["run"] == "routed":
                assert row[f"router us/req, {name}"]["median"] > 0
        if row["connections"] == 3:
            assert row["worker KB/connection"] is None  # too few to measure
        else:
            assert row["worker KB/connection"]["median"] is not None


def test_growth_makes_a_table_and_plots(bench: Bench, tmp_path: Path) -> None:
    rows = bench.rows("growth", "--quick", "--seconds", "0.1", "--out", str(tmp_path))
    points = {(row["what"], row["x"]) for row in rows}
    quantities = ("partitions", "connections", "members", "groups", "batch bytes", "log bytes")
    assert {what for what, _ in points} == set(quantities)
    for what in quantities:
        assert len([x for name, x in points if name == what]) > 1
    assert all(row["us"]["median"] >= 0 for row in rows)
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")
    picture = (tmp_path / "growth.svg").read_text()
    assert all(what in picture for what in quantities)
    lines = (tmp_path / "growth.md").read_text().splitlines()
    assert len({len(line.split("|")) for line in lines}) == 1
    for what in quantities:
        described = [line for line in lines if line.startswith(f"| {what}: ")]
        assert len(described) == len({row["run"] for row in rows if row["what"] == what})


# --- all of them ---

ALL = ("all", "--log-bytes", str(4 << 20), *SHORT)


@pytest.mark.slow
def test_all_benchmarks_in_one_report(bench: Bench) -> None:
    """Each of them has a short run of its own in these tests."""
    report = bench.report(*ALL)
    assert [part["bench"] for part in report["benches"]] == [
        *("produce", "fetch", "catchup", "latency", "groups", "transactions"),
        *("connections", "router", "scaling", "native"),
    ]
    assert all(part["rows"] for part in report["benches"])


def test_a_broker_whose_processes_are_unknown_and_two_reports_compared(
    bench: Bench, moldau: Broker, tmp_path: Path
) -> None:
    """Its processes and its store are unknown here: it has a runtime directory of its own."""
    report = bench.report(*ALL, "--bootstrap", moldau.bootstrap)
    parts = {part["bench"]: part["rows"] for part in report["benches"]}
    assert list(parts) == ["produce", "fetch", "catchup", "latency", "groups", "connections"]
    assert all(parts.values())
    assert {row["run"] for row in parts["produce"]} == {"produce"}
    assert {row["run"] for row in parts["fetch"]} == {"bare uvloop", "tail fetch", "cold fetch"}
    for row in (*parts["produce"], *parts["fetch"]):
        assert row["requests/s"]["median"] > 0
        for unknown in ("broker us/req", "worker us/req", "store us/req", "worker MB", "broker MB"):
            assert row[unknown] is None
    (record,) = [row for row in parts["latency"] if row["run"] == "record"]
    assert record["p50 ms"]["median"] > 0
    assert record["worker us/record"] is None
    _check_comparison(bench, report, list(parts), tmp_path)


def _check_comparison(bench: Bench, report: Any, names: list[str], directory: Path) -> None:
    one, doubled = directory / "one.json", directory / "two.json"
    one.write_text(json.dumps(report))
    for part in report["benches"]:
        for row in part["rows"]:
            for figure in row.values():
                if isinstance(figure, dict):
                    figure["median"] *= 2
    doubled.write_text(json.dumps(report))
    rows = bench.rows("--compare", str(one), str(doubled))
    assert {row["bench"].split()[0] for row in rows} == set(names)
    ratios = {row["B / A"] for row in rows if row["figure"] != "of baseline"}
    assert ratios - {None} == {2.0}
    code, table, _ = bench.run("--compare", str(one), str(doubled))
    assert code == 0
    assert "B / A" in table
    assert "2.00" in table


# --- errors ---


@pytest.mark.parametrize("content", ["no JSON", "{}", "[]"])
def test_a_file_that_is_not_a_report_is_one_clear_line(
    bench: Bench, tmp_path: Path, content: str
) -> None:
    wrong = tmp_path / "wrong.json"
    wrong.write_text(content)
    code, _, error = bench.run("--compare", str(wrong), str(wrong))
    assert code == 1
    assert "wrong.json" in error


@pytest.mark.parametrize("words", [["--repeat", "0"], ["--seconds", "0"], ["--seconds", "-1"]])
def test_numbers_that_make_no_sense_are_refused(
    bench: Bench, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        bench.run("latency", *words)
    assert refused.value.code == 2
    assert words[0] in capsys.readouterr().err


def test_no_broker_at_the_address_is_one_clear_line() -> None:
    command = [
        sys.executable,
        "-m",
        "moldau.ops.cli",
        "bench",
        "produce",
        "--bootstrap",
        "127.0.0.1:1",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr
