"""`moldau bench --bootstrap` and brokers of others: a second Moldau whose processes are not ours.

It has a runtime directory of its own, so all that is known of it is what any broker tells.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from loadtest.bench.harness.client import Client, NotReady
from loadtest.bench.harness.coordinator_requests import coordinators
from loadtest.bench.harness.group_members import BenchMember, MemberConnection
from loadtest.bench.harness.target import Target, running
from tests.support.running import Broker, remove_dir, short_temp_dir

SHORT = ("--seconds", "0.3", "--repeat", "1")


@pytest.fixture(scope="module")
def other() -> Iterator[Broker]:
    """One that begins a group's first generation with whoever is there."""
    directory = short_temp_dir()
    broker = Broker.start(directory, workers=1, broker={"group.initial.rebalance.delay.ms": 0})
    yield broker
    assert broker.stop() == 0, broker.log()
    remove_dir(directory)


def _done(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ops.cli", "bench", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)


def _rows(broker: Broker, *words: str) -> list[dict[str, Any]]:
    pid = ("--pid", str(broker.process.pid))
    done = _done(*words, "--bootstrap", broker.bootstrap, *pid, *SHORT, "--json")
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)["rows"]
    return rows


def test_cpu_and_memory_of_its_processes_are_told(other: Broker) -> None:
    (produce,) = _rows(other, "produce", "--size", "1024")
    assert produce["broker us/req"]["median"] > 0
    assert produce["MB/s of broker CPU"]["median"] > 0
    # `serve` itself takes little: this is the sum of what it started.
    assert produce["broker MB"]["median"] > 60
    assert produce["worker us/req"] is None

    tail = _rows(other, "fetch", "--size", "65536", "--log-bytes", str(4 << 20))[1]
    assert tail["run"] == "tail fetch"
    assert tail["broker us/req"]["median"] > 0

    record = _rows(other, "latency", "--rate", "50")[1]
    assert record["run"] == "record"
    assert record["broker us/record"]["median"] > 0
    assert record["broker MB"]["median"] > 60


def test_a_group_forms_on_a_broker_that_does_not_wait_for_members(other: Broker) -> None:
    (row,) = _rows(other, "groups", "--members", "20")
    assert row["run"] == "1 group of 20"
    assert row["heartbeats/s"]["median"] > 0
    assert row["broker us/heartbeat"]["median"] > 0
    assert row["of it broker us"]["median"] > 0
    assert row["broker MB"]["median"] > 60
    assert row["of it worker us"] is None


def test_its_connections_have_one_way_in(other: Broker) -> None:
    rows = _rows(other, "connections", "--count", "3", "--count", "150")
    assert [(row["connections"], row["run"]) for row in rows] == [
        (count, way) for count in (3, 150) for way in ("bare uvloop", "direct")
    ]
    for row in rows:
        assert row["broker us/req, all active"]["median"] > 0
    assert rows[-1]["broker KB/connection"]["median"] is not None


def test_without_a_second_hop_there_is_none_to_measure(
    start_moldau: Callable[..., Broker],
) -> None:
    broker = start_moldau(workers=1, advertise="router")  # as any broker of one process
    done = _done("router", "--bootstrap", broker.bootstrap, *SHORT)
    assert done.returncode == 1
    assert "no second hop" in done.stderr


def test_a_table_has_no_columns_without_a_figure(other: Broker) -> None:
    shown = _done("latency", "--rate", "50", "--bootstrap", other.bootstrap, *SHORT)
    assert shown.returncode == 0, shown.stderr
    assert "p50 ms" in shown.stdout
    assert "worker" not in shown.stdout


def test_a_process_that_is_not_there_is_one_clear_line(other: Broker) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(30)
    for words, wanted in (
        (("--bootstrap", other.bootstrap), f"--pid {gone.pid}: there is no such process"),
        ((), "--bootstrap"),
    ):
        done = _done("produce", *words, "--pid", str(gone.pid))
        assert done.returncode == 1
        assert wanted in done.stderr
        assert "Traceback" not in done.stderr


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
    """In Kafka the first group's is away for a moment, as a worker is here that was killed."""
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
