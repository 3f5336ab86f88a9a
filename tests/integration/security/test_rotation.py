"""Certificates are replaced while clients work: none of them notices."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import ssl
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from moldau.broker.security.certificate import read_certificate
from tests.integration.security.staying_clients import STAYS, Stay
from tests.support.brokers.certificates import Authority
from tests.support.brokers.running import Broker, running_broker, wait_until
from tests.support.clients.secure import RECORDS, ROUND_TRIPS, Login

# kafka-python reads its schemas through a deprecated function, when it is imported.
pytestmark = pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning")

WORKERS = 2
ROTATIONS = 4


class Rotating:
    """A broker whose certificate is replaced, and what its processes show."""

    def __init__(self, broker: Broker, authorities: list[Authority], directory: Path) -> None:
        self.broker = broker
        self._authorities = itertools.cycle(authorities)
        self.ca = directory / "ca.pem"
        self.server = directory / "server.pem"
        self.bootstrap = broker.bootstraps["SSL"]

    def replace(self, name: str) -> None:
        """Replace it as tools do: a new file is moved over the old one."""
        new = next(self._authorities).issue(name).write(self.server.with_name("new.pem"))
        os.replace(new, self.server)

    def shown(self) -> set[str]:
        """The certificates that the router and every worker show."""
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


@pytest.fixture(scope="module", params=["workers", "router"])
def rotating(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Rotating]:
    """Clients hear of the workers' own ports, or of the router's only."""
    directory = tmp_path_factory.mktemp("rotating")
    old, new = Authority("the old CA"), Authority("the new CA")
    (directory / "ca.pem").write_text(old.certificate + new.certificate)
    server = old.issue("zero").write(directory / "server.pem")
    settings = {
        "group.initial.rebalance.delay.ms": 100,
        "ssl.keystore.location": server,
        "moldau.ssl.reload.interval.ms": 100,
    }
    with running_broker(
        workers=WORKERS, listeners=["SSL"], advertise=request.param, broker=settings
    ) as broker:
        yield Rotating(broker, [new, old], directory)


def test_replaced_under_load_no_client_notices(rotating: Rotating) -> None:
    """Each client has a producer and a consumer that stay, and others that come and go all the
    while. Every second certificate is of another authority, which clients trust too."""
    load = Load(rotating)
    with ThreadPoolExecutor(2 * len(STAYS)) as pool:
        ends = [pool.submit(run, name) for name in STAYS for run in (load.stay, load.come_and_go)]
        try:
            for number in range(ROTATIONS):
                rotating.replace(f"rotation-{number}")
                rotating.until_shown(f"rotation-{number}")
                load.until_all_did_more()
        finally:
            load.end()
        for end in ends:
            end.result()
    assert "no TLS connection" not in rotating.broker.log()


class Load:
    def __init__(self, rotating: Rotating) -> None:
        self._bootstrap = rotating.bootstrap
        self._login = Login("SSL", str(rotating.ca))
        self._stays = {
            name: Stay(self._bootstrap, self._login, f"stays-{name}-{uuid.uuid4().hex[:8]}")
            for name in STAYS
        }
        self._visits = dict.fromkeys(STAYS, 0)
        self._faults: list[str] = []

    def stay(self, name: str) -> None:
        with self._noted(name):
            STAYS[name](self._stays[name])

    def come_and_go(self, name: str) -> None:
        with self._noted(name):
            while not self._stays[name].is_over:
                topic = f"visited-{name}-{uuid.uuid4().hex[:8]}"
                assert ROUND_TRIPS[name](self._bootstrap, self._login, topic) == RECORDS
                self._visits[name] += 1

    @contextlib.contextmanager
    def _noted(self, name: str) -> Iterator[None]:
        try:
            yield
        except BaseException as fault:
            self._faults.append(f"{name}: {fault!r}")
            raise

    def _done(self) -> dict[str, tuple[int, int]]:
        return {name: (self._visits[name], stay.done) for name, stay in self._stays.items()}

    def until_all_did_more(self) -> None:
        """What was under way is over, and one visit and one record more have begun and ended."""
        before = self._done()

        def did_more() -> bool:
            assert not self._faults, self._faults
            return all(
                visits >= before[name][0] + 2 and done >= before[name][1] + 2
                for name, (visits, done) in self._done().items()
            )

        wait_until(did_more, 120, f"more than {before}, of which there is {self._done()}")

    def end(self) -> None:
        for stay in self._stays.values():
            stay.is_over = True


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
    rotating.server.write_text(Authority().issue("bad").key + Authority().certificate)

    def said() -> bool:
        lines = [each for each in rotating.broker.log().splitlines() if "do not belong" in each]
        return all(
            any(role in line for line in lines) for role in ("worker-0", "worker-1", "router-0")
        )

    wait_until(said, 30, "log lines")
    assert rotating.shown() == {"CN=good"}
    rotating.replace("better")
    rotating.until_shown("better")
