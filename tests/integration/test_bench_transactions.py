"""`moldau bench transactions`: short runs, for what they check and the form of the results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from moldau.loadtest.bench.transactions import COLUMNS
from tests.support.brokers.bench import SHORT, Bench
from tests.support.brokers.running import Broker
from tests.support.compat.grouping import quick_broker

FORMS = ("plain", "v1", "v2")
FETCHES = ("fetch", "fetch, half aborted")
OF_PROCESSES = ("broker us each", "worker us each", "store us each")


@pytest.fixture(scope="module")
def moldau() -> Iterator[Broker]:
    """Two workers: coordinators and leaders are not always the same one."""
    yield from quick_broker()


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str]) -> Bench:
    return Bench(capsys)


def check(runs: dict[str, dict[str, Any]]) -> None:
    assert list(runs) == [
        *(f"{form}, {way}" for way in ("parallel", "serial") for form in FORMS),
        *(f"{log}, {level}" for log in FETCHES for level in ("uncommitted", "committed")),
    ]
    for row in runs.values():
        assert list(row) == ["run", *COLUMNS]
        assert row["each/s"]["median"] > 0
        assert row["p50 ms"]["median"] > 0
    for form in FORMS:
        assert (runs[f"{form}, parallel"]["end p50 ms"] is None) == (form == "plain")
        assert runs[f"{form}, parallel"]["visible p50 ms"] is None
        assert runs[f"{form}, serial"]["visible p50 ms"] is not None
    for run, baseline in (
        ("v2, serial", "plain, serial"),
        ("v1, parallel", "plain, parallel"),
        ("fetch, half aborted, committed", "fetch, half aborted, uncommitted"),
    ):
        ratio = runs[run]["each/s"]["median"] / runs[baseline]["each/s"]["median"]
        assert runs[run]["of baseline"] == pytest.approx(ratio)
        assert runs[baseline]["of baseline"] is None


def test_both_forms_and_isolation_levels_are_measured(bench: Bench) -> None:
    runs = bench.by_run("transactions", "--connections", "3", "--partitions", "2", *SHORT)
    check(runs)
    for row in runs.values():
        assert all(row[name]["median"] > 0 for name in (*OF_PROCESSES, "client us each"))


def test_a_broker_whose_processes_are_unknown(bench: Bench, moldau: Broker) -> None:
    few = ("--connections", "4", "--partitions", "3")
    runs = bench.by_run("transactions", "--bootstrap", moldau.bootstrap, *few, *SHORT)
    check(runs)
    for row in runs.values():
        assert [row[name] for name in OF_PROCESSES] == [None] * 3
