"""`moldau bench groups`: short runs, for what they check and the form of the results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.brokers.bench import Bench
from tests.support.brokers.running import Broker
from tests.support.compat.grouping import quick_broker


@pytest.fixture(scope="module")
def moldau() -> Iterator[Broker]:
    yield from quick_broker()


FIGURES = {
    "form s",
    "rebalance ms",
    "rebalance us/member",
    "of it client us",
    "joins/s",
    "heartbeats/s",
    "bare us/request",
}
OF_PROCESSES = {  # n/a for a broker whose processes are unknown
    "form us/member",
    "of it broker us",
    "of it worker us",
    "broker us/heartbeat",
    "worker us/heartbeat",
    "heartbeats/s of worker core",
    "broker MB",
}


Groups = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def bench_groups(capsys: pytest.CaptureFixture[str]) -> Groups:
    """`bench_groups(broker, *words)`; None starts a broker, whose CPU can be read."""

    def run(broker: Broker | None, *words: str) -> list[dict[str, Any]]:
        where = [] if broker is None else ["--bootstrap", broker.bootstrap]
        short = ("--seconds", "0.3", "--repeat", "1")
        report = Bench(capsys).report("groups", *where, *words, *short)
        assert report["bench"] == "groups"
        rows: list[dict[str, Any]] = report["rows"]
        return rows

    return run


def test_groups_of_several_sizes(moldau: Broker, bench_groups: Groups) -> None:
    few, many = bench_groups(moldau, "--members", "3", "--members", "100")

    assert (few["run"], many["run"]) == ("1 group of 3", "1 group of 100")
    for row in (few, many):
        for name in FIGURES:
            assert row[name]["median"] >= 0, name
        assert {name: row[name] for name in OF_PROCESSES} == dict.fromkeys(OF_PROCESSES)
        assert row["heartbeats/s"]["median"] > 0
        assert row["joins/s"]["median"] > 0
    assert many.keys() == few.keys() == FIGURES | OF_PROCESSES | {"run", "KB/member"}


def test_many_groups(moldau: Broker, bench_groups: Groups) -> None:
    (row,) = bench_groups(moldau, "--members", "2", "--groups", "20")

    assert row["run"] == "20 groups of 2"
    assert row["heartbeats/s"]["median"] > 0


def test_what_members_cost_the_worker(bench_groups: Groups) -> None:
    (row,) = bench_groups(None, "--members", "100")

    for name in FIGURES | OF_PROCESSES:
        assert row[name]["median"] > 0, name
    assert row["KB/member"]["median"] >= 0


@pytest.mark.slow
def test_a_group_of_1000_members_and_2000_groups(bench_groups: Groups) -> None:
    """The worker's CPU per member in a rebalance does not grow with the number of members."""
    hundred, thousand = bench_groups(None, "--members", "100", "--members", "1000")
    (many,) = bench_groups(None, "--members", "2", "--groups", "2000")

    assert (thousand["run"], many["run"]) == ("1 group of 1,000", "2,000 groups of 2")
    growth = thousand["of it worker us"]["median"] / hundred["of it worker us"]["median"]
    assert growth < 3  # ten if it grew with the number of members
    for row in (thousand, many):
        assert row["heartbeats/s"]["median"] > 0
        assert row["KB/member"]["median"] >= 0


def test_both_protocols_here_and_in_another_broker(moldau: Broker, bench_groups: Groups) -> None:
    """They take turns, so that whatever else the machine does affects all of them."""
    beside = ("--beside", moldau.bootstrap, "--beside-pid", str(moldau.pid))
    rows = bench_groups(None, "--members", "5", "--protocol", "both", *beside)

    assert [row["run"] for row in rows] == [
        "1 group of 5, classic",
        "1 group of 5, consumer",
        f"1 group of 5, classic, {moldau.bootstrap}",
        f"1 group of 5, consumer, {moldau.bootstrap}",
    ]
    for row in rows:
        for name in ("joins/s", "rebalance ms", "heartbeats/s", "broker us/heartbeat", "broker MB"):
            assert row[name]["median"] > 0, name
