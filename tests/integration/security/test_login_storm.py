"""A login storm: 500 connections a second, each of which logs in and hangs up; all of them are
served, and so are others meanwhile.

The clients of the storm are another process (`login_storm.py`) on the same cores. A handshake of
TLS costs it more than it costs the broker, so there are fewer of those.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import psutil  # type: ignore[import-untyped]
import pytest

from moldau.broker.wire.messages.metadata import MetadataRequest
from tests.integration.security.login_storm import storming
from tests.support.brokers.certificates import Certificates
from tests.support.brokers.sasl_broker import PLAIN, SHA_256, SHA_512, SaslBroker, sasl_broker
from tests.support.raw.sasl import SaslClient

RATES = {"SASL_PLAINTEXT": 500, "SASL_SSL": 150}
CALM_S = 2.0


class Case(NamedTuple):
    protocol: str
    where: str
    mechanism: str
    seconds: float


CASES = [
    pytest.param(
        Case(protocol, where, mechanism, seconds),
        id=f"{protocol}-{where}-{mechanism}-{seconds:g}s",
        marks=[pytest.mark.slow] if seconds > 2 else [],
    )
    for protocol in RATES
    for where in ("router", "0")
    for mechanism, seconds in ((SHA_256, 2), (PLAIN, 10), (SHA_256, 10), (SHA_512, 10))
]


@pytest.fixture(scope="module")
def sasl(certificates: Certificates) -> Iterator[SaslBroker]:
    keys: dict[str, object] = {"ssl.keystore.location": certificates.server}
    with sasl_broker(keys, workers=2, listeners=list(RATES)) as running:
        yield running


def latencies(client: SaslClient, is_over: Callable[[], bool]) -> list[float]:
    """Latencies in seconds of small requests, one after the other."""
    took = []
    while not is_over():
        begun = time.perf_counter()
        client.call(MetadataRequest(topics=[]), 9)
        took.append(time.perf_counter() - begun)
        time.sleep(0.002)
    return took


def p99(took: list[float]) -> float:
    return statistics.quantiles(took, n=100)[98]


def cpu_seconds(sasl: SaslBroker) -> float:
    """CPU time of routers and workers."""
    total = 0.0
    for role in ("worker", "router"):
        for pid in sasl.broker.pids(role):
            times = psutil.Process(pid).cpu_times()
            total += times.user + times.system
    return total


@pytest.mark.parametrize("case", CASES)
def test_a_login_storm(sasl: SaslBroker, certificates: Certificates, case: Case) -> None:
    rate = RATES[case.protocol]
    port = sasl.port(case.where, case.protocol)
    ca = str(certificates.ca) if case.protocol == "SASL_SSL" else ""
    with sasl.log_in(case.where) as other:
        calm_ends = time.monotonic() + CALM_S
        calm = latencies(other, lambda: time.monotonic() > calm_ends)
        before = cpu_seconds(sasl)
        with storming(port, rate, case.seconds, case.mechanism, ca) as storm:
            stormy = latencies(other, lambda: storm.is_over)
            made = storm.result()
        used = cpu_seconds(sasl) - before
    print(
        f"\n{case.mechanism} over {case.protocol} at {case.where}: {made.per_second:.0f} logins/s; "
        f"{used / made.logins * 1e6:.0f} us of the broker's CPU each, "
        f"{made.cpu_seconds / made.logins * 1e6:.0f} us of the client's; "
        f"p99 of a login {made.p99 * 1000:.1f} ms; p99 of another client "
        f"{p99(calm) * 1000:.1f} ms before, {p99(stormy) * 1000:.1f} ms meanwhile"
    )
    assert not made.faults
    assert made.logins == made.due > 0
    # It shares two cores with the storm. A request waits no longer than logins do, which are
    # three of them, and is not starved of its turn: one for every 25 logins at the very least.
    assert p99(stormy) < max(10 * p99(calm), made.p99)
    assert len(stormy) > made.logins / 25
