"""`moldau bench groups` in small: what it checks and the shape of what it prints; never times."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.compat.grouping import quick_broker
from tests.support.running import Broker


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
OF_PROCESSES = {  # n/a of a broker whose processes cannot be seen, as this one's
    "form us/member",
    "of it broker us",
    "of it worker us",
    "broker us/heartbeat",
    "worker us/heartbeat",
    "heartbeats/s of worker core",
    "broker MB",
}


def _bench(broker: Broker | None, *words: str) -> list[dict[str, Any]]:
    """None: with a broker of its own, whose CPU it can read."""
    where = [] if broker is None else ["--bootstrap", broker.bootstrap]
    command = [sys.executable, "-m", "ops.cli", "bench", "groups", *where]
    command += [*words, "--seconds", "0.5", "--repeat", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["bench"] == "groups"
    rows: list[dict[str, Any]] = report["rows"]
    return rows


def test_groups_of_several_sizes(moldau: Broker) -> None:
    few, many = _bench(moldau, "--members", "3", "--members", "100")

    assert (few["run"], many["run"]) == ("1 group of 3", "1 group of 100")
    for row in (few, many):
        for name in FIGURES:
            assert row[name]["median"] >= 0, name
        assert {name: row[name] for name in OF_PROCESSES} == dict.fromkeys(OF_PROCESSES)
        assert row["heartbeats/s"]["median"] > 0
        assert row["joins/s"]["median"] > 0
    assert many.keys() == few.keys() == FIGURES | OF_PROCESSES | {"run", "KB/member"}


def test_many_groups(moldau: Broker) -> None:
    (row,) = _bench(moldau, "--members", "2", "--groups", "20")

    assert row["run"] == "20 groups of 2"
    assert row["heartbeats/s"]["median"] > 0


def test_what_members_cost_the_worker() -> None:
    (row,) = _bench(None, "--members", "100")

    for name in FIGURES | OF_PROCESSES:
        assert row[name]["median"] > 0, name
    assert row["KB/member"]["median"] >= 0


@pytest.mark.slow
def test_a_group_of_1000_members_and_2000_groups() -> None:
    """What a member costs the worker in a rebalance does not grow with the number of members."""
    hundred, thousand = _bench(None, "--members", "100", "--members", "1000")
    (many,) = _bench(None, "--members", "2", "--groups", "2000")

    assert (thousand["run"], many["run"]) == ("1 group of 1,000", "2,000 groups of 2")
    growth = thousand["of it worker us"]["median"] / hundred["of it worker us"]["median"]
    assert growth < 3  # ten if each member's part took all the others' time
    for row in (thousand, many):
        assert row["heartbeats/s"]["median"] > 0
        assert row["KB/member"]["median"] >= 0
