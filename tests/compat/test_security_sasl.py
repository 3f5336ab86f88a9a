"""Every client logs in with every mechanism, with and without TLS: on workers' own ports, and where
only the router's can be reached. Who it is reaches the authorizer either way."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest

from tests.support.brokers.certificates import Certificates
from tests.support.brokers.sasl_broker import SHA_256, SHA_512, SaslBroker, sasl_broker
from tests.support.brokers.tokens import claims, signed
from tests.support.clients.secure import RECORDS, ROUND_TRIPS, Login

# kafka-python reads its schemas through a deprecated function, when it is imported.
pytestmark = pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning")

LISTENERS = ("SASL_PLAINTEXT", "SASL_SSL")
# Short sessions for one mechanism: clients log in again while they work (KIP-368).
SESSION_MS = 2000


@pytest.fixture(scope="module", params=["workers", "router"])
def sasl(request: pytest.FixtureRequest, certificates: Certificates) -> Iterator[SaslBroker]:
    settings: dict[str, object] = {
        "group.initial.rebalance.delay.ms": 100,
        "ssl.keystore.location": certificates.server,
        "authorizer.class.name": "standard",
        "super.users": "User:alice;User:bob",
        "listener.name.sasl_ssl.scram-sha-512.connections.max.reauth.ms": SESSION_MS,
    }
    with sasl_broker(settings, listeners=LISTENERS, advertise=request.param) as running:
        running.set_password("mallory", "secret")
        yield running


def new_topic() -> str:
    return f"sasl-{uuid.uuid4().hex[:12]}"


@pytest.mark.parametrize("mechanism", ["PLAIN", SHA_256, SHA_512])
@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("client", ROUND_TRIPS)
def test_records_and_groups_pass_after_a_login(
    sasl: SaslBroker, certificates: Certificates, client: str, listener: str, mechanism: str
) -> None:
    ca = str(certificates.ca) if listener == "SASL_SSL" else ""
    login = Login(listener, ca, mechanism=mechanism, username="alice", password="secret")
    found = ROUND_TRIPS[client](sasl.broker.bootstraps[listener], login, new_topic())
    assert found == RECORDS


def produce(config: dict[str, Any], seconds: float = 0) -> list[str | None]:
    """The names of the errors of each record, over some time."""
    faults: list[str | None] = []
    producer = confluent_kafka.Producer(config)
    topic = new_topic()
    deadline = time.monotonic() + seconds
    try:
        while True:
            producer.produce(
                topic,
                b"x",
                on_delivery=lambda fault, _: faults.append(None if fault is None else fault.name()),
            )
            assert producer.flush(30) == 0
            if time.monotonic() >= deadline:
                return faults
            time.sleep(0.05)
    except confluent_kafka.KafkaException as refused:
        return [refused.args[0].name()]


@pytest.mark.parametrize("listener", LISTENERS)
# kcat has no way to be given a token.
@pytest.mark.parametrize("client", [name for name in ROUND_TRIPS if name != "kcat"])
def test_a_token_lets_in(
    sasl: SaslBroker, certificates: Certificates, client: str, listener: str
) -> None:
    ca = str(certificates.ca) if listener == "SASL_SSL" else ""
    token = signed(claims(time.time_ns() // 1_000_000, sub="bob"))
    login = Login(listener, ca, mechanism="OAUTHBEARER", token=token)
    found = ROUND_TRIPS[client](sasl.broker.bootstraps[listener], login, new_topic())
    assert found == RECORDS


def librdkafka(sasl: SaslBroker, ca: object, user: str, mechanism: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": sasl.broker.bootstraps["SASL_SSL"],
        **Login("SASL_SSL", str(ca), "", "", mechanism, user, "secret").librdkafka(),
    }


def test_the_login_says_who_the_client_is(sasl: SaslBroker, certificates: Certificates) -> None:
    """Alice may do everything, Mallory nothing, although both have logged in."""
    config = librdkafka(sasl, certificates.ca, "mallory", SHA_256)
    assert produce(config) == ["TOPIC_AUTHORIZATION_FAILED"]


def test_a_client_that_logs_in_again_notices_nothing(
    sasl: SaslBroker, certificates: Certificates
) -> None:
    config = librdkafka(sasl, certificates.ca, "alice", SHA_512)
    disconnects: list[str] = []
    config["error_cb"] = lambda fault: disconnects.append(str(fault))
    faults = produce(config, seconds=2.5 * SESSION_MS / 1000)
    assert len(faults) > 20
    assert not any(faults)
    assert disconnects == []
