"""Every client over TLS, with and without a certificate of its own: on workers' own ports, and
where only the router's can be reached. Who the client is reaches the authorizer either way."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer

from tests.support.brokers.certificates import Certificates
from tests.support.brokers.running import Broker, running_broker
from tests.support.clients.secure import RECORDS, ROUND_TRIPS, Login

# kafka-python reads its schemas through a deprecated function, when it is imported.
pytestmark = pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning")

LISTENERS = ("SSL", "MUTUAL")


@pytest.fixture(scope="module", params=["workers", "router"])
def secured(request: pytest.FixtureRequest, certificates: Certificates) -> Iterator[Broker]:
    settings = {
        "group.initial.rebalance.delay.ms": 100,
        "ssl.keystore.location": certificates.server,
        "ssl.truststore.location": certificates.ca,
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.mutual.ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/L,DEFAULT",
        "authorizer.class.name": "standard",
        "super.users": "User:alice;User:ANONYMOUS",
    }
    with running_broker(
        workers=2,
        listeners=LISTENERS,
        listener_security_protocol_map="MUTUAL:SSL",
        advertise=request.param,
        broker=settings,
    ) as broker:
        yield broker


def login(certificates: Certificates, listener: str) -> Login:
    if listener == "SSL":
        return Login("SSL", str(certificates.ca))
    certificate, key = str(certificates.client_certificate), str(certificates.client_key)
    return Login("SSL", str(certificates.ca), certificate, key)


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("client", ROUND_TRIPS)
def test_records_and_groups_pass_over_tls(
    secured: Broker, certificates: Certificates, client: str, listener: str
) -> None:
    topic = f"tls-{uuid.uuid4().hex[:12]}"
    bootstrap = secured.bootstraps[listener]
    found = ROUND_TRIPS[client](bootstrap, login(certificates, listener), topic)
    assert found == RECORDS


def test_the_certificate_says_who_the_client_is(
    secured: Broker, certificates: Certificates, tmp_path: Path
) -> None:
    """Alice may do everything, Mallory nothing, although both have certificates."""
    mallory = str(certificates.authority.issue("mallory").write(tmp_path / "mallory.pem"))
    given = Login("SSL", str(certificates.ca), mallory, mallory)
    faults: list[str] = []
    producer = Producer({"bootstrap.servers": secured.bootstraps["MUTUAL"], **given.librdkafka()})
    topic = f"tls-{uuid.uuid4().hex[:12]}"
    try:
        producer.produce(
            topic, b"x", on_delivery=lambda fault, _: faults.append(str(fault and fault.name()))
        )
        assert producer.flush(30) == 0
    except KafkaException as refused:
        faults.append(refused.args[0].name())
    assert faults == ["TOPIC_AUTHORIZATION_FAILED"]
