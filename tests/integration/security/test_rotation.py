"""Certificates are replaced while clients work: none of them notices."""

import os
import signal
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from broker.security.certificate import read_certificate
from tests.support.certificates import Authority
from tests.support.running import Broker, running_broker, wait_until

WORKERS = 2
LOAD_S, ROTATIONS = 6.0, 4


class Rotating:
    """A broker whose certificate is replaced, and what its processes show."""

    def __init__(self, broker: Broker, authority: Authority, directory: Path) -> None:
        self.broker = broker
        self.authority = authority
        self.ca = directory / "ca.pem"
        self.server = directory / "server.pem"
        self.bootstrap = broker.bootstraps["SSL"]

    def replace(self, name: str) -> None:
        """As tools do it: a new file, moved over the old one."""
        new = self.authority.issue(name).write(self.server.with_name("new.pem"))
        os.replace(new, self.server)

    def shown(self) -> set[str]:
        """By the router and by every worker."""
        first = int(self.bootstrap.rpartition(":")[2])
        context = ssl.create_default_context(cafile=str(self.ca))
        found = set()
        for port in range(first, first + 1 + WORKERS):
            raw = socket.create_connection(("127.0.0.1", port), 10)
            with context.wrap_socket(raw, server_hostname="localhost") as client:
                found.add(read_certificate(client.getpeercert(True) or b"").subject)
        return found

    def until_shown(self, name: str) -> None:
        wait_until(lambda: self.shown() == {f"CN={name}"}, 30, f"all processes to show {name}")

    def client(self, more: dict[str, object]) -> dict[str, object]:
        return {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.ca),
            **more,
        }


@pytest.fixture(scope="module")
def rotating(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rotating]:
    directory = tmp_path_factory.mktemp("rotating")
    authority = Authority()
    authority.write(directory / "ca.pem")
    server = authority.issue("zero").write(directory / "server.pem")
    settings = {
        "group.initial.rebalance.delay.ms": 100,
        "ssl.keystore.location": server,
        "moldau.ssl.reload.interval.ms": 100,
    }
    with running_broker(workers=WORKERS, listeners=["SSL"], broker=settings) as broker:
        yield Rotating(broker, authority, directory)


def test_replaced_under_load_no_client_notices(rotating: Rotating) -> None:
    """One producer and one consumer that stay, and producers that come and go all the while."""
    faults: list[str] = []
    stop = threading.Event()
    sent = 1

    def note(fault: object, _: object = None) -> None:
        if fault is not None:
            faults.append(str(fault))

    staying = Producer(rotating.client({"error_cb": note}))
    staying.produce("rotation", b"the first", on_delivery=note)  # makes the topic
    assert staying.flush(30) == 0
    consumer = Consumer(
        rotating.client({"error_cb": note, "group.id": "rotation", "auto.offset.reset": "earliest"})
    )
    consumer.subscribe(["rotation"])

    def come_and_go() -> None:
        while not stop.is_set():
            passing = Producer(rotating.client({"error_cb": note}))
            passing.produce("passing", b"x", on_delivery=note)
            if passing.flush(30):
                faults.append("not delivered")

    visitors = threading.Thread(target=come_and_go)
    visitors.start()
    names = iter([f"rotation-{number}" for number in range(ROTATIONS)])
    begun, next_at, received = time.monotonic(), 0.0, 0
    while time.monotonic() - begun < LOAD_S:
        if time.monotonic() - begun >= next_at and (name := next(names, "")):
            rotating.replace(name)
            next_at += LOAD_S / (ROTATIONS + 1)
        staying.produce("rotation", b"x" * 1000, on_delivery=note)
        sent += 1
        staying.poll(0)
        if (message := consumer.poll(0.01)) is not None:
            note(message.error())
            received += 1
    stop.set()
    visitors.join(60)
    assert staying.flush(30) == 0
    deadline = time.monotonic() + 30
    while received < sent and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is not None:
            note(message.error())
            received += 1
    consumer.close()
    assert not faults
    assert received == sent > 0
    rotating.until_shown(f"rotation-{ROTATIONS - 1}")


def test_sighup_looks_at_them_at_once_and_restarts_nothing(rotating: Rotating) -> None:
    """Also when no file has changed: then the watch over them would have said nothing."""

    def reloads() -> int:
        return rotating.broker.log().count("listener SSL uses its new certificates")

    pids = [*rotating.broker.pids("worker"), *rotating.broker.pids("router")]
    before = reloads()
    os.kill(rotating.broker.pid, signal.SIGHUP)
    wait_until(lambda: reloads() == before + len(pids), 30, "every process to have looked")
    assert [*rotating.broker.pids("worker"), *rotating.broker.pids("router")] == pids


def test_a_bad_pair_leaves_the_old_one_and_every_process_says_why(rotating: Rotating) -> None:
    rotating.replace("good")
    rotating.until_shown("good")
    rotating.server.write_text(Authority().issue("bad").key + rotating.authority.certificate)

    def said() -> bool:
        lines = [each for each in rotating.broker.log().splitlines() if "do not belong" in each]
        return all(
            any(role in line for line in lines) for role in ("worker-0", "worker-1", "router-0")
        )

    wait_until(said, 30, "log lines")
    assert rotating.shown() == {"CN=good"}
    rotating.replace("better")
    rotating.until_shown("better")
