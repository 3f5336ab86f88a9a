"""`moldau bench`: small runs, for what they check and the shape of what they print; never times."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.running import Broker


def _bench(*words: str) -> Any:
    command = [sys.executable, "-m", "ops.cli", "bench", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
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
    parts = sum(produce[f"{role} us/req"]["median"] for role in ("worker", "store"))
    assert produce["broker us/req"]["median"] >= parts
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


def test_connections_are_measured_against_a_bare_server() -> None:
    rows = _bench("connections", "--count", "3", "--count", "150", *SHORT)["rows"]
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
            assert row["worker KB/connection"] is None  # too few to tell
        else:
            assert row["worker KB/connection"]["median"] is not None


def test_of_a_broker_that_is_not_ours_the_clients_side_is_measured(moldau: Broker) -> None:
    """Its processes and its store are unknown here: it has a runtime directory of its own."""
    where = ("--bootstrap", moldau.bootstrap)
    small = ("--log-bytes", str(4 << 20))
    produce = _runs(_bench("produce", "--size", "1024", *where, *SHORT))
    fetch = _runs(_bench("fetch", "--size", "65536", *where, *small, *SHORT))
    latency = _runs(_bench("latency", "--rate", "50", *where, *SHORT))
    assert set(produce) == {"produce"}
    assert set(fetch) == {"bare uvloop", "tail fetch", "cold fetch"}
    for row in (produce["produce"], fetch["tail fetch"], fetch["cold fetch"]):
        assert row["requests/s"]["median"] > 0
        for unknown in ("broker us/req", "worker us/req", "store us/req", "worker MB", "broker MB"):
            assert row[unknown] is None
    assert latency["record"]["p50 ms"]["median"] > 0
    assert latency["record"]["worker us/record"] is None


def test_memory_is_told() -> None:
    row = _runs(_bench("produce", "--size", "1024", *SHORT))["produce"]
    assert row["worker MB"]["median"] > 1
    assert row["store MB"]["median"] > 1
    assert row["broker MB"]["median"] > row["worker MB"]["median"] + row["store MB"]["median"]


ALL = ("all", "--seconds", "0.2", "--repeat", "1", "--log-bytes", str(4 << 20))


@pytest.mark.slow
def test_everything_in_small() -> None:
    """Each of them has a smoke of its own here."""
    report = _bench(*ALL)
    assert [part["bench"] for part in report["benches"]] == [
        *("produce", "fetch", "latency", "groups", "connections", "router", "scaling", "native")
    ]
    assert all(part["rows"] for part in report["benches"])


def test_everything_that_any_broker_can_show_and_two_such_reports_compared(
    moldau: Broker, tmp_path: Path
) -> None:
    report = _bench(*ALL, "--bootstrap", moldau.bootstrap)
    names = [part["bench"] for part in report["benches"]]
    assert names == ["produce", "fetch", "latency", "groups", "connections"]
    assert all(part["rows"] for part in report["benches"])

    file, twice = tmp_path / "one.json", tmp_path / "two.json"
    file.write_text(json.dumps(report))
    for part in report["benches"]:
        for row in part["rows"]:
            for figure in row.values():
                if isinstance(figure, dict):
                    figure["median"] *= 2
    twice.write_text(json.dumps(report))
    rows = _bench("--compare", str(file), str(twice))["rows"]
    assert {row["bench"].split()[0] for row in rows} == set(names)
    ratios = {row["B / A"] for row in rows if row["figure"] != "of baseline"}
    assert ratios - {None} == {2.0}

    shown = subprocess.run(
        [sys.executable, "-m", "ops.cli", "bench", "--compare", str(file), str(twice)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "B / A" in shown.stdout
    assert "2.00" in shown.stdout


def test_what_cannot_be_compared_is_one_clear_line(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.json"
    for content in ("no JSON", "{}", "[]"):
        wrong.write_text(content)
        command = [sys.executable, "-m", "ops.cli", "bench", "--compare", str(wrong), str(wrong)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1
        assert "wrong.json" in done.stderr
        assert "Traceback" not in done.stderr


def test_growth_makes_a_table_and_plots(tmp_path: Path) -> None:
    report = _bench("growth", "--quick", "--seconds", "0.2", "--out", str(tmp_path))
    points = {(row["what"], row["x"]) for row in report["rows"]}
    quantities = ("partitions", "connections", "members", "groups", "batch bytes", "log bytes")
    assert {what for what, _ in points} == set(quantities)
    for what in quantities:
        assert len([x for name, x in points if name == what]) > 1
    assert all(row["us"]["median"] >= 0 for row in report["rows"])
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")
    picture = (tmp_path / "growth.svg").read_text()
    assert all(what in picture for what in quantities)
    lines = (tmp_path / "growth.md").read_text().splitlines()
    assert len({len(line.split("|")) for line in lines}) == 1
    for what in quantities:
        of_it = [line for line in lines if line.startswith(f"| {what}: ")]
        assert len(of_it) == len({row["run"] for row in report["rows"] if row["what"] == what})


@pytest.mark.parametrize("words", [["--repeat", "0"], ["--seconds", "0"], ["--seconds", "-1"]])
def test_numbers_that_make_no_sense_are_refused(words: list[str]) -> None:
    command = [sys.executable, "-m", "ops.cli", "bench", "latency", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert words[0] in done.stderr
    assert "Traceback" not in done.stderr


def test_nobody_there_is_one_clear_line() -> None:
    command = [sys.executable, "-m", "ops.cli", "bench", "produce", "--bootstrap", "127.0.0.1:1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr
