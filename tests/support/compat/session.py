"""What a compatibility test works with: one client, one broker, topics of its own."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import redis

from moldau.broker.store import keys
from moldau.broker.wire.batch import BatchHeader, headers
from moldau.broker.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponseTopic,
)
from tests.support.brokers.running import Broker, wait_until
from tests.support.clients.base import (
    EARLIEST,
    Admin,
    Client,
    Consumer,
    ConsumerSettings,
    NewTopic,
    Place,
    Placed,
    Producer,
    ProducerSettings,
    Received,
    Record,
)
from tests.support.raw.client import RawClient

PATIENCE_S = 30.0
UNKNOWN_ERROR = -1
PROPAGATION_S = 30.0  # a change reaches all workers in milliseconds; the machine may be busy


class Session:
    """One test's use of a client; closes what it opened."""

    def __init__(self, client: Client, broker: Broker) -> None:
        self.client = client
        self.broker = broker
        self._open = contextlib.ExitStack()
        self._admin: Admin | None = None

    def close(self) -> None:
        self._open.close()

    # --- the client's parts ---

    @property
    def admin(self) -> Admin:
        if self._admin is None:
            self._admin = self.client.admin(self.broker.bootstrap)
            self._open.callback(self._admin.close)
        return self._admin

    def producer(self, **settings: Any) -> Producer:
        producer = self.client.producer(self.broker.bootstrap, ProducerSettings(**settings))
        self._open.callback(producer.close)
        return producer

    def consumer(self, **settings: Any) -> Consumer:
        consumer = self.client.consumer(self.broker.bootstrap, ConsumerSettings(**settings))
        self._open.callback(consumer.close)
        return consumer

    def sees(self, code: int) -> int:
        """What the client makes of an error code."""
        return UNKNOWN_ERROR if code in self.client.unknown_codes else code

    # --- topics ---

    def new_name(self) -> str:
        return f"{self.client.name}-{uuid.uuid4().hex[:12]}"

    def topic(self, partitions: int = 1, configs: Mapping[str, str] | None = None) -> str:
        """A new topic."""
        name = self.new_name()
        codes = self.admin.create_topics([NewTopic(name, partitions, dict(configs or {}))])
        assert codes == {name: 0}
        self._wait_until_all_workers_list(name)
        return name

    def _wait_until_all_workers_list(self, name: str) -> None:
        """Some clients look for a topic among all that any one broker lists, and only once."""
        for port in worker_ports(self.broker):
            with RawClient(port) as raw:
                wait_until(
                    lambda raw=raw: name in listed(raw),  # type: ignore[misc]
                    PROPAGATION_S,
                    f"port {port} lists the topic",
                )

    def wait_for_topics(self, *names: str) -> None:
        """Wait until topics are listed: a worker may hear of them a moment later."""
        wait_until(lambda: self.admin.topic_names().issuperset(names), PROPAGATION_S, "listed")

    def wait_for_partitions(self, topic: str, count: int) -> None:
        """Wait until every worker shows them: some clients write only to what they have seen."""
        for port in worker_ports(self.broker):
            with RawClient(port) as raw:
                wait_until(
                    lambda raw=raw: len(described(raw, topic).partitions) == count,  # type: ignore[misc]
                    PROPAGATION_S,
                    f"port {port} tells of {count} partitions",
                )

    # --- records ---

    def produce(self, topic: str, records: Iterable[Record], **settings: Any) -> list[Placed]:
        return send_all(self.producer(**settings), topic, records)

    def read(self, topic: str, count: int, partitions: int = 1, **settings: Any) -> list[Received]:
        """That many records from the beginning of a topic; fails when they do not come."""
        consumer = self.consumer(**settings)
        consumer.assign({Place(topic, index): EARLIEST for index in range(partitions)})
        return read(consumer, count)

    # --- the store ---

    def stored(self, topic: str, partition: int = 0) -> list[BatchHeader]:
        """The headers of a partition's batches as they lie in its stream."""
        with redis.Redis.from_url(self.broker.store_url) as store:
            entries: Any = store.xrange(keys.stream(topic, 0, partition))
        return [header for _, fields in entries for header in headers(fields[b"b"])]


def worker_ports(broker: Broker) -> list[int]:
    """The workers' own ports: those after the one for bootstrap."""
    return [broker.port + 1 + index for index in range(len(broker.processes("worker")))]


def listed(raw: RawClient) -> set[str | None]:
    """The names of all topics one worker knows."""
    return {topic.name for topic in raw.call(MetadataRequest(None)).topics}


def described(raw: RawClient, topic: str) -> MetadataResponseTopic:
    """What one worker knows of a topic."""
    request = MetadataRequest([MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    found: MetadataResponseTopic
    (found,) = raw.call(request).topics
    return found


def send_all(producer: Producer, topic: str, records: Iterable[Record]) -> list[Placed]:
    for record in records:
        producer.send(topic, record)
    return producer.flush()


def read(consumer: Consumer, count: int, patience_s: float = PATIENCE_S) -> list[Received]:
    """Read at least that many records, in the order they come; fails when they do not."""
    found: list[Received] = []
    deadline = time.monotonic() + patience_s
    while len(found) < count:
        left = deadline - time.monotonic()
        assert left > 0, f"{len(found)} of {count} records came"
        found += consumer.poll(min(left, 1.0))
    return found


def numbered(count: int, prefix: str = "record", partition: int | None = 0) -> list[Record]:
    """Records whose values tell their order."""
    return [
        Record(value=f"{prefix}-{number:06}".encode(), partition=partition)
        for number in range(count)
    ]


def values(received: Iterable[Received]) -> list[bytes | None]:
    return [record.value for record in received]
