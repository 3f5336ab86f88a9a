"""Real clients over TLS and SASL: each writes some records and reads them back in a group."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import confluent_kafka

from tests.support.raw import kafka_python  # first: see there

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", r"\w+_text is deprecated", DeprecationWarning)
    import aiokafka
    import aiokafka.abc
    import aiokafka.helpers
    import kafka
    import kafka.net.sasl.oauth

assert kafka_python
PATIENCE_S = 60.0
RECORDS = [f"record {number}".encode() for number in range(20)]
KCAT = shutil.which("kcat") or shutil.which("kafkacat")


class KafkaPythonTokens(kafka.net.sasl.oauth.AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    def token(self) -> str:
        return self._token


class AiokafkaTokens(aiokafka.abc.AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


class Login(NamedTuple):
    """What a client has to say to get in."""

    protocol: str = "PLAINTEXT"
    ca: str = ""
    certificate: str = ""
    key: str = ""
    mechanism: str = ""
    username: str = ""
    password: str = ""
    token: str = ""  # of OAUTHBEARER

    def confluent(self) -> dict[str, Any]:
        if not self.token:
            return dict(self.librdkafka())
        return {**self.librdkafka(), "oauth_cb": lambda _: (self.token, time.time() + 600)}

    def librdkafka(self) -> dict[str, str]:
        given = {
            "security.protocol": self.protocol,
            "ssl.ca.location": self.ca,
            "ssl.certificate.location": self.certificate,
            "ssl.key.location": self.key,
            "sasl.mechanism": self.mechanism,
            "sasl.username": self.username,
            "sasl.password": self.password,
        }
        return {name: value for name, value in given.items() if value}

    def kafka_python(self) -> dict[str, Any]:
        given: dict[str, Any] = {
            "security_protocol": self.protocol,
            "ssl_cafile": self.ca,
            "ssl_certfile": self.certificate,
            "ssl_keyfile": self.key,
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.username,
            "sasl_plain_password": self.password,
            "sasl_oauth_token_provider": KafkaPythonTokens(self.token) if self.token else None,
        }
        return {name: value for name, value in given.items() if value}

    def aiokafka(self) -> dict[str, Any]:
        given: dict[str, Any] = {
            "security_protocol": self.protocol,
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.username,
            "sasl_plain_password": self.password,
            "ssl_context": self.context() if self.ca else None,
            "sasl_oauth_token_provider": AiokafkaTokens(self.token) if self.token else None,
        }
        return {name: value for name, value in given.items() if value}

    def context(self) -> ssl.SSLContext:
        context = aiokafka.helpers.create_ssl_context(
            cafile=self.ca or None,
            certfile=self.certificate or None,
            keyfile=self.key or None,
        )
        assert isinstance(context, ssl.SSLContext)
        return context


def confluent_round_trip(bootstrap: str, login: Login, topic: str) -> list[bytes]:
    common: dict[str, Any] = {"bootstrap.servers": bootstrap, **login.confluent()}
    producer = confluent_kafka.Producer(common)
    faults: list[object] = []
    for value in RECORDS:
        producer.produce(topic, value, on_delivery=lambda fault, _: faults.append(fault))
    assert producer.flush(PATIENCE_S) == 0
    assert not any(faults), faults
    consumer = confluent_kafka.Consumer(
        {**common, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    found: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < len(RECORDS) and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is not None:
            assert message.error() is None, message.error()
            found.append(message.value() or b"")
    consumer.close()
    return found


def kafka_python_round_trip(bootstrap: str, login: Login, topic: str) -> list[bytes]:
    common: dict[str, Any] = {"bootstrap_servers": bootstrap, **login.kafka_python()}
    producer = kafka.KafkaProducer(**common)
    for sent in [producer.send(topic, value) for value in RECORDS]:
        sent.get(PATIENCE_S)
    producer.close()
    consumer = kafka.KafkaConsumer(
        topic, group_id=topic, auto_offset_reset="earliest", consumer_timeout_ms=20_000, **common
    )
    found: list[bytes] = []
    for message in consumer:
        found.append(message.value)
        if len(found) == len(RECORDS):
            break
    consumer.close()
    return found


def aiokafka_round_trip(bootstrap: str, login: Login, topic: str) -> list[bytes]:
    async def talk() -> list[bytes]:
        common: dict[str, Any] = {"bootstrap_servers": bootstrap, **login.aiokafka()}
        producer = aiokafka.AIOKafkaProducer(**common)
        await producer.start()
        for value in RECORDS:
            await producer.send_and_wait(topic, value)
        await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer(
            topic, group_id=topic, auto_offset_reset="earliest", **common
        )
        await consumer.start()
        async with asyncio.timeout(PATIENCE_S):
            found = [(await consumer.getone()).value for _ in RECORDS]
        await consumer.stop()
        return found

    return asyncio.run(talk())


def kcat_round_trip(bootstrap: str, login: Login, topic: str) -> list[bytes]:
    assert KCAT is not None
    words = [word for pair in login.librdkafka().items() for word in ("-X", "=".join(pair))]

    def run(*more: str, given: bytes = b"") -> bytes:
        done = subprocess.run(
            [str(KCAT), "-b", bootstrap, *words, *more],
            input=given,
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    run("-P", "-t", topic, given=b"\n".join(RECORDS))
    return run("-C", "-t", topic, "-e", "-q", "-o", "beginning").splitlines()


RoundTrip = Callable[[str, Login, str], list[bytes]]
ROUND_TRIPS: dict[str, RoundTrip] = {
    "confluent-kafka": confluent_round_trip,
    "kafka-python": kafka_python_round_trip,
    "aiokafka": aiokafka_round_trip,
    **({"kcat": kcat_round_trip} if KCAT else {}),
}
