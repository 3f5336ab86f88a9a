"""While a worker or router is restarted: connections are not refused, they wait for its successor.

How long that takes is printed, not asserted: it depends on how busy the machine is.
"""

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
from confluent_kafka import Producer

from moldau.broker.wire.messages.api_versions import ApiVersionsRequest
from moldau.broker.wire.messages.metadata import MetadataRequest
from tests.support.brokers.running import Broker, wait_until
from tests.support.raw.calls import create_topic
from tests.support.raw.client import RawClient
from tests.support.stores.redis_server import start_redis

Start = Callable[..., Broker]


def ports(broker: Broker) -> list[int]:
    """The bootstrap port, then every worker's."""
    return [broker.port + number for number in range(3)]


@pytest.mark.parametrize(("role", "port"), [("worker", 1), ("router", 0)])
def test_connections_made_while_a_process_is_down_are_answered_by_its_successor(
    start_moldau: Start, role: str, port: int
) -> None:
    broker = start_moldau(workers=2)
    old = broker.pids(role)[0]
    broker.kill("supervisor", number=signal.SIGSTOP)  # the gap lasts until it goes on
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: psutil.Process(old).status() == psutil.STATUS_ZOMBIE, 30, "it is dead")
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(RawClient(ports(broker)[port])) for _ in range(50)]
        for client in clients:
            client.send(ApiVersionsRequest("raw", "1"))
        broker.process.send_signal(signal.SIGCONT)
        for client in clients:
            assert client.receive().error_code == 0
    broker.wait_restarted(role, 0, old)


class Pinger:
    """Connects to a port every 10 ms and sends a request, in a thread of its own."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.refused = 0
        self.unanswered = 0  # for 30 s
        self.answered_at = [time.monotonic()]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.01):
            try:
                with RawClient(self.port) as client:
                    client.call(ApiVersionsRequest("raw", "1"))
                self.answered_at.append(time.monotonic())
            except ConnectionRefusedError:
                self.refused += 1
            except TimeoutError:
                self.unanswered += 1
            except ConnectionError:
                pass  # it was connected to the process that was killed

    def finish(self) -> None:
        self._stop.set()
        self._thread.join()

    def longest_gap_ms(self) -> float:
        times = self.answered_at
        return 1000 * max(b - a for a, b in pairwise(times))


def test_no_connection_is_refused_while_processes_are_killed_under_load(
    start_moldau: Start,
) -> None:
    broker = start_moldau(workers=2, routers=1)
    with RawClient(broker.port) as client:
        create_topic(client, "load", partitions=2)
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "enable.idempotence": True,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
        }
    )
    delivered: list[Any] = []
    pingers = [Pinger(port) for port in ports(broker)]
    rng = random.Random(5)
    sent = 0
    try:
        for role, index in [("worker", 0), ("router", 0), ("worker", 1)] * 2:
            old = broker.kill(role, index)
            until = time.monotonic() + rng.uniform(1.0, 1.6)
            while time.monotonic() < until:
                producer.produce(
                    "load", b"%08d" % sent, on_delivery=lambda e, _: delivered.append(e)
                )
                sent += 1
                producer.poll(0.002)
            broker.wait_restarted(role, index, old)
    finally:
        for pinger in pingers:
            pinger.finish()
    assert producer.flush(60) == 0
    print({each.port - broker.port: f"{each.longest_gap_ms():.0f} ms" for each in pingers})
    assert [each.refused for each in pingers] == [0, 0, 0]
    assert [each.unanswered for each in pingers] == [0, 0, 0]
    assert delivered == [None] * sent


# --- the spare ---


def spares(broker: Broker) -> list[int]:
    """Processes that are not in the status, nor a guard's shell."""
    known = {process["pid"] for process in broker.status()["processes"]}
    found = []
    for one in psutil.Process(broker.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if one.pid not in known and "moldau.ops.serve.spare_process" in one.cmdline():
                found.append(one.pid)
    return found


def spare(broker: Broker, other_than: int | None = None) -> int:
    """The spare's pid, once there is one."""
    wait_until(lambda: spares(broker) not in ([], [other_than]), 30, "there is a spare")
    (pid,) = spares(broker)
    return pid


def test_the_spare_becomes_what_died_and_is_replaced(start_moldau: Start) -> None:
    broker = start_moldau(workers=2)
    for role, index in (("worker", 1), ("router", 0)):
        pid = spare(broker)
        old = broker.kill(role, index)
        broker.wait_restarted(role, index, old)
        assert broker.processes(role)[index]["pid"] == pid
    # It has its own sockets only, as any other process of its role.
    listening = {one.laddr.port for one in psutil.Process(pid).net_connections("tcp")}
    assert listening == {broker.port}
    assert broker.processes("worker")[1]["restarts"] == 1

    pid = spare(broker)
    os.kill(pid, signal.SIGKILL)  # of no consequence
    assert spare(broker, other_than=pid)
    assert [process["restarts"] for process in broker.status()["processes"]] == [0, 0, 0, 1, 1]


def test_a_worker_that_starts_while_the_store_is_down_waits_for_it(
    start_moldau: Start, tmp_path: Path
) -> None:
    """It would exit, and its successor, and each of them costs a start and a longer wait."""
    store = start_redis(tmp_path, "--appendonly", "yes")
    try:
        broker = start_moldau(workers=1, redis=store.url)
        with RawClient(broker.port + 1) as client:
            create_topic(client, "kept")
        store.stop()
        old = broker.kill("worker", 0)
        wait_until(lambda: "waiting for the store" in broker.log(), 60, "its successor waits")
        store = start_redis(tmp_path, "--appendonly", "yes", port=store.port)
        broker.wait_restarted("worker", 0, old)
        with RawClient(broker.port + 1) as client:
            answer = client.call(MetadataRequest(None))
            assert "kept" in [topic.name for topic in answer.topics]
        assert broker.processes("worker")[0]["restarts"] == 1
        assert "could not start" not in broker.log()
    finally:
        store.stop()


def test_no_spare_outlives_a_killed_supervisor(start_moldau: Start) -> None:
    broker = start_moldau(workers=1)
    os.kill(spare(broker), signal.SIGSTOP)
    broker.kill("supervisor")
    broker.process.wait(30)
    wait_until(lambda: not broker.leftovers(), 30, f"orphans are gone: {broker.leftovers()}")


def test_without_a_spare_a_worker_is_restarted_all_the_same(start_moldau: Start) -> None:
    broker = start_moldau(workers=1, spare_process="false")
    time.sleep(1.5)  # when there would be one
    old = broker.kill("worker", 0)
    broker.wait_restarted("worker", 0, old)
    assert not spares(broker)
