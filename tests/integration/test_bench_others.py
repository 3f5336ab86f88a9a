"""`moldau bench --bootstrap --pid` against a broker that is measured like any other.

It is a Moldau with a runtime directory of its own: only what every broker answers is known of it.
"""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from moldau.loadtest.bench.harness.client import Client, NotReady
from moldau.loadtest.bench.harness.coordinator_requests import coordinators
from moldau.loadtest.bench.harness.group_members import BenchMember, MemberConnection
from moldau.loadtest.bench.harness.target import Target, running
from tests.support.brokers.bench import SHORT, Bench
from tests.support.brokers.running import Broker, remove_dir, short_temp_dir


@pytest.fixture(scope="module")
def other() -> Iterator[Broker]:
    """One that begins a group's first generation with the first member."""
    directory = short_temp_dir()
    broker = Broker.start(directory, workers=1, broker={"group.initial.rebalance.delay.ms": 0})
    yield broker
    assert broker.stop() == 0, broker.log()
    remove_dir(directory)


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str]) -> Bench:
    return Bench(capsys)


def _rows(bench: Bench, broker: Broker, *words: str) -> list[dict[str, Any]]:
    pid = ("--pid", str(broker.process.pid))
    return bench.rows(*words, "--bootstrap", broker.bootstrap, *pid, *SHORT)


def test_cpu_and_memory_of_its_processes_are_measured(bench: Bench, other: Broker) -> None:
    (produce,) = _rows(bench, other, "produce", "--size", "1024")
    assert produce["broker us/req"]["median"] > 0
    assert produce["MB/s of broker CPU"]["median"] > 0
    # `serve` itself takes little: this is the sum of what it started.
    assert produce["broker MB"]["median"] > 60
    assert produce["worker us/req"] is None

    tail = _rows(bench, other, "fetch", "--size", "65536", "--log-bytes", str(4 << 20))[1]
    assert tail["run"] == "tail fetch"
    assert tail["broker us/req"]["median"] > 0

    record = _rows(bench, other, "latency", "--rate", "50")[1]
    assert record["run"] == "record"
    assert record["broker us/record"]["median"] > 0
    assert record["broker MB"]["median"] > 60


def test_a_group_forms_on_a_broker_that_does_not_wait_for_members(
    bench: Bench, other: Broker
) -> None:
    (row,) = _rows(bench, other, "groups", "--members", "20")
    assert row["run"] == "1 group of 20"
    assert row["heartbeats/s"]["median"] > 0
    assert row["broker us/heartbeat"]["median"] > 0
    assert row["of it broker us"]["median"] > 0
    assert row["broker MB"]["median"] > 60
    assert row["of it worker us"] is None


def test_its_connections_have_one_way_in(bench: Bench, other: Broker) -> None:
    rows = _rows(bench, other, "connections", "--count", "3", "--count", "150")
    assert [(row["connections"], row["run"]) for row in rows] == [
        (count, way) for count in (3, 150) for way in ("bare uvloop", "direct")
    ]
    for row in rows:
        assert row["broker us/req, all active"]["median"] > 0
    assert rows[-1]["broker KB/connection"]["median"] is not None


def test_without_a_second_hop_there_is_none_to_measure(
    bench: Bench, start_moldau: Callable[..., Broker]
) -> None:
    broker = start_moldau(workers=1, advertise="router")  # as any broker of one process
    code, _, error = bench.run("router", "--bootstrap", broker.bootstrap, *SHORT)
    assert code == 1
    assert "no second hop" in error


def test_a_table_has_no_columns_without_a_figure(bench: Bench, other: Broker) -> None:
    where = ("--bootstrap", other.bootstrap)
    code, table, error = bench.run("latency", "--rate", "50", *where, *SHORT)
    assert code == 0, error
    assert "p50 ms" in table
    assert "worker" not in table


def test_a_process_that_is_not_there_is_one_clear_line(bench: Bench, other: Broker) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(30)
    for words, wanted in (
        (("--bootstrap", other.bootstrap), f"--pid {gone.pid}: there is no such process"),
        ((), "--bootstrap"),
    ):
        code, _, error = bench.run("produce", *words, "--pid", str(gone.pid))
        assert code == 1
        assert wanted in error


def test_a_topic_that_takes_a_while_to_appear_is_waited_for(other: Broker) -> None:
    name = f"late-{secrets.token_hex(4)}"
    with Client(("127.0.0.1", other.port)) as waiting:
        with pytest.raises(NotReady):
            waiting.end_offsets(name)
        creator = threading.Timer(0.3, _create, (other.port, name, 3))
        creator.start()
        waiting.await_topic(name, 3)
        assert waiting.end_offsets(name) == {0: 0, 1: 0, 2: 0}
        creator.join()


def _create(port: int, name: str, partitions: int) -> None:
    with Client(("127.0.0.1", port)) as client:
        client.create_topic(name, partitions)


async def test_a_coordinator_that_is_not_there_yet_is_waited_for(other: Broker) -> None:
    """Kafka has no coordinator for its first group yet; here its worker was killed."""
    group = f"early-{secrets.token_hex(4)}"
    other.kill("worker", 0)
    target = running(other.bootstrap)
    assert not target.is_local_moldau
    member = await _join_through_the_router(target, group)
    assert member.generation == 1
    assert list(coordinators(target, [group])) == [group]


async def _join_through_the_router(target: Target, group: str) -> BenchMember:
    loop = asyncio.get_running_loop()
    began = time.monotonic()
    while True:
        _, connection = await loop.create_connection(MemberConnection, *target.address)
        member = BenchMember(group, connection)
        try:
            await member.join()
            return member
        except OSError:  # the router closes what was on its way to the worker
            assert time.monotonic() - began < 60
            await asyncio.sleep(0.05)
        finally:
            connection.close()
            await asyncio.sleep(0)
