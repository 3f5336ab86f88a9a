"""A worker that dies in the middle of a login through the router: clients are disconnected, and
the next ones are let in."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import pytest
from kafka.net.sasl.scram import ScramClient

from moldau.broker.access.logins import warn_of_open_passwords
from moldau.broker.settings.processes import Listener
from moldau.broker.settings.sasl import SaslSettings
from tests.support.brokers.sasl_broker import PLAIN, SHA_256, SaslBroker, sasl_broker
from tests.support.raw.sasl import SaslClient


@pytest.fixture(scope="module")
def sasl() -> Iterator[SaslBroker]:
    with sasl_broker(workers=2) as running:
        yield running


def log_in_within(sasl: SaslBroker, where: str, seconds: float) -> SaslClient:
    deadline = time.monotonic() + seconds
    while True:
        try:
            return sasl.log_in(where)
        except (ConnectionError, AssertionError):
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_a_worker_that_dies_in_the_middle(sasl: SaslBroker) -> None:
    begun = []
    for _ in range(4):  # by turns on both workers
        client = SaslClient(sasl.port("router"))
        client.handshake(SHA_256)
        scram = ScramClient("alice", "secret", SHA_256)
        first = client.token(scram.first_message())
        scram.process_server_first_message(bytes(first.auth_bytes))
        begun.append((client, scram))
    sasl.broker.kill("worker", 1)
    cut = 0
    for client, scram in begun:
        try:
            assert client.token(scram.final_message()).error_code == 0
            assert client.is_served
        except ConnectionError:
            cut += 1
    assert cut == 2
    with log_in_within(sasl, "router", 20) as client:
        assert client.is_served
    with log_in_within(sasl, "1", 20) as client:  # the next one knows the users
        assert client.is_served


def test_a_client_that_leaves_in_the_middle_leaves_nothing_behind(sasl: SaslBroker) -> None:
    for step in ("nothing", "handshake", "token"):
        for _ in range(50):
            with SaslClient(sasl.port("router")) as client:
                if step != "nothing":
                    client.handshake(SHA_256)
                if step == "token":
                    client.token(b"n,,n=alice,r=x")
    with sasl.log_in("router") as client:
        assert client.is_served


@pytest.mark.parametrize(
    ("protocol", "host", "mechanisms", "is_said"),
    [
        ("SASL_PLAINTEXT", "0.0.0.0", [PLAIN], True),
        ("SASL_PLAINTEXT", "127.0.0.1", [PLAIN], False),
        ("SASL_PLAINTEXT", "0.0.0.0", [SHA_256], False),
        ("SASL_SSL", "0.0.0.0", [PLAIN], False),
    ],
)
def test_passwords_in_the_open_are_an_error_in_the_log(
    caplog: pytest.LogCaptureFixture, protocol: str, host: str, mechanisms: list[str], is_said: bool
) -> None:
    settings = SaslSettings(mechanisms=mechanisms)
    listener = Listener(name="X", protocol=protocol, host=host, sasl=settings)  # type: ignore[arg-type]
    with caplog.at_level(logging.ERROR):
        warn_of_open_passwords(listener)
    assert ("PLAIN" in caplog.text) is is_said
