"""Real clients that stay: one producer and one consumer each, which exchange records one by one for
as long as a test wants. Any error is raised; `done` counts the records that came through."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import aiokafka
import confluent_kafka
import kafka

from tests.support.clients.secure import KCAT, PATIENCE_S, Login


class Stay:
    def __init__(self, bootstrap: str, login: Login, topic: str) -> None:
        self.bootstrap, self.login, self.topic = bootstrap, login, topic
        self.is_over = False
        self.done = 0

    def values(self) -> Iterator[bytes]:
        """What to send, until it is over."""
        while not self.is_over:
            yield b"%d" % self.done
            self.done += 1

    def check(self, value: bytes, found: list[bytes]) -> None:
        assert found == [value], f"{found} in place of {value!r}"


def confluent_stay(stay: Stay) -> None:
    faults: list[str] = []

    def note(fault: object, _: object = None) -> None:
        if fault is not None:
            faults.append(str(fault))

    common: dict[str, Any] = {
        "bootstrap.servers": stay.bootstrap,
        "error_cb": note,
        **stay.login.librdkafka(),
    }
    producer = confluent_kafka.Producer(common)
    producer.produce(stay.topic, b"the first", on_delivery=note)  # makes the topic
    assert producer.flush(PATIENCE_S) == 0
    consumer = confluent_kafka.Consumer(
        {**common, "group.id": stay.topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([stay.topic])
    assert _next_of_confluent(consumer) == [b"the first"]
    for value in stay.values():
        producer.produce(stay.topic, value, on_delivery=note)
        assert producer.flush(PATIENCE_S) == 0
        stay.check(value, _next_of_confluent(consumer))
        assert not faults, faults
    consumer.close()
    assert not faults, faults


def _next_of_confluent(consumer: Any) -> list[bytes]:
    message = consumer.poll(PATIENCE_S)
    assert message is not None, "nothing came"
    assert message.error() is None, message.error()
    return [message.value()]


def kafka_python_stay(stay: Stay) -> None:
    common: dict[str, Any] = {"bootstrap_servers": stay.bootstrap, **stay.login.kafka_python()}
    producer = kafka.KafkaProducer(retries=0, **common)
    producer.send(stay.topic, b"the first").get(PATIENCE_S)
    consumer = kafka.KafkaConsumer(
        stay.topic, group_id=stay.topic, auto_offset_reset="earliest", **common
    )
    stay.check(b"the first", _next_of_kafka_python(consumer))
    for value in stay.values():
        producer.send(stay.topic, value).get(PATIENCE_S)
        stay.check(value, _next_of_kafka_python(consumer))
    consumer.close()
    producer.close()


def _next_of_kafka_python(consumer: Any) -> list[bytes]:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = [each.value for some in consumer.poll(1000).values() for each in some]
        if found:
            return found
    raise AssertionError("nothing came")


def aiokafka_stay(stay: Stay) -> None:
    async def talk() -> None:
        common: dict[str, Any] = {"bootstrap_servers": stay.bootstrap, **stay.login.aiokafka()}
        producer = aiokafka.AIOKafkaProducer(**common)
        await producer.start()
        await producer.send_and_wait(stay.topic, b"the first")
        consumer = aiokafka.AIOKafkaConsumer(
            stay.topic, group_id=stay.topic, auto_offset_reset="earliest", **common
        )
        await consumer.start()
        first = await asyncio.wait_for(consumer.getone(), PATIENCE_S)
        stay.check(b"the first", [first.value])
        for value in stay.values():
            await producer.send_and_wait(stay.topic, value)
            found = await asyncio.wait_for(consumer.getone(), PATIENCE_S)
            stay.check(value, [found.value])
        await consumer.stop()
        await producer.stop()

    asyncio.run(talk())


def kcat_stay(stay: Stay) -> None:
    """The consumer stays; a producer comes for each record, as kcat reads standard input in large
    pieces. What they complain of is on their standard error."""
    words = [word for pair in stay.login.librdkafka().items() for word in ("-X", "=".join(pair))]
    start = [str(KCAT), "-b", stay.bootstrap, *words, "-t", stay.topic]

    def produce(value: bytes) -> None:
        done = subprocess.run(
            [*start, "-P"], input=value, capture_output=True, timeout=PATIENCE_S, check=False
        )
        assert (done.returncode, done.stderr) == (0, b"")

    produce(b"the first")  # a consumer of a topic that does not exist gives up
    with subprocess.Popen(
        [*start, "-C", "-q", "-u", "-o", "beginning"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as consumer:
        assert consumer.stdout is not None
        try:
            stay.check(b"the first", [consumer.stdout.readline().rstrip()])
            for value in stay.values():
                produce(value)
                stay.check(value, [consumer.stdout.readline().rstrip()])
        finally:
            consumer.terminate()
        _, complaints = consumer.communicate(timeout=PATIENCE_S)
        assert complaints == b""


STAYS: dict[str, Callable[[Stay], None]] = {
    "confluent-kafka": confluent_stay,
    "kafka-python": kafka_python_stay,
    "aiokafka": aiokafka_stay,
    **({"kcat": kcat_stay} if KCAT else {}),
}
