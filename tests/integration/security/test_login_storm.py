"""A login storm: up to 500 logins a second for ten seconds, as many as one client process can make;
others hardly notice."""

from __future__ import annotations

import functools
import hashlib
import statistics
import threading
import time
from collections.abc import Iterator

import psutil  # type: ignore[import-untyped]
import pytest

from broker.wire.messages.metadata import MetadataRequest
from tests.support.sasl_broker import PLAIN, SHA_256, SaslBroker, sasl_broker
from tests.support.sasl_client import SaslClient

RATE, SECONDS = 500, 10
hash_once = functools.cache(hashlib.pbkdf2_hmac)


@pytest.fixture(scope="module")
def sasl() -> Iterator[SaslBroker]:
    with sasl_broker(workers=2) as running:
        yield running


def p99(client: SaslClient, stop: threading.Event) -> float:
    """Of small requests, one after the other, until `stop`; in seconds."""
    took = []
    while not stop.is_set():
        begun = time.perf_counter()
        client.call(MetadataRequest(topics=[]), 9)
        took.append(time.perf_counter() - begun)
        time.sleep(0.002)
    return statistics.quantiles(took, n=100)[98]


def log_in_often(sasl: SaslBroker, where: str, mechanism: str) -> tuple[int, float]:
    """Logins, and how long they took. The client's part of SCRAM is done once, as some clients
    do: the storm would be one of hashing in the client."""
    done = 0
    begun = time.monotonic()
    while (at := time.monotonic() - begun) < SECONDS:
        if done < at * RATE:
            with SaslClient(sasl.port(where), source="127.0.0.8") as client:
                client.log_in(mechanism, "alice", "secret")
                done += 1
        else:
            time.sleep(0.001)
    return done, time.monotonic() - begun


def cpu_seconds(sasl: SaslBroker) -> float:
    """Of routers and workers."""
    total = 0.0
    for role in ("worker", "router"):
        for pid in sasl.broker.pids(role):
            times = psutil.Process(pid).cpu_times()
            total += times.user + times.system
    return total


@pytest.mark.slow
@pytest.mark.parametrize("where", ["router", "0"])
@pytest.mark.parametrize("mechanism", [PLAIN, SHA_256])
def test_others_are_served_during_a_login_storm(
    sasl: SaslBroker, where: str, mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashlib, "pbkdf2_hmac", hash_once)
    with sasl.log_in(where) as other:
        calm_over = threading.Event()
        threading.Timer(2, calm_over.set).start()
        calm = p99(other, calm_over)
        over = threading.Event()
        storms: list[tuple[int, float]] = []

        def storm() -> None:
            storms.append(log_in_often(sasl, where, mechanism))
            over.set()

        before = cpu_seconds(sasl)
        thread = threading.Thread(target=storm)
        thread.start()
        stormy = p99(other, over)
        thread.join()
        used = cpu_seconds(sasl) - before
    ((logins, seconds),) = storms
    print(
        f"\n{mechanism} at {where}: {logins / seconds:.0f} logins/s by one client process; "
        f"at most {used / logins * 1e6:.0f} us of the broker's CPU each; "
        f"p99 of another client {calm * 1000:.1f} ms before, {stormy * 1000:.1f} ms meanwhile"
    )
    # The client of the storm and its threads share the two cores with the broker.
    assert stormy < 10 * calm
