"""A native topic, seen from both sides: a Kafka consumer of a group, and Redis."""

import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from moldau.broker.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from tests.support.brokers.running import Broker, wait_until
from tests.support.raw.client import RawClient
from tests.support.raw.group import coordinator_port
from tests.support.stores.monitor import Monitor

PATIENCE_S = 30.0
QUICK = {"group.initial.rebalance.delay.ms": 0, "group.min.session.timeout.ms": 500}


class Native:
    """A topic of one broker and the streams behind it."""

    def __init__(self, broker: Broker, partitions: int = 1, **configs: str) -> None:
        self.broker = broker
        self.name = f"native-{uuid.uuid4().hex[:10]}"
        self.store = self.connect()
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        settings = {"moldau.storage": "native"} | {
            name.replace("_", "."): value for name, value in configs.items()
        }
        created = admin.create_topics([NewTopic(self.name, partitions, 1, config=settings)])
        created[self.name].result()
        self.admin = admin

    def connect(self) -> Any:
        return redis.Redis.from_url(self.broker.store_url)

    def close(self) -> None:
        self.store.close()

    def key(self, partition: int = 0) -> str:
        return f"moldau:{self.name}:{partition}"

    def add(self, *values: object, partition: int = 0) -> list[bytes]:
        """Add entries as a Redis application does; returns their ids."""
        return [self.store.xadd(self.key(partition), {"value": str(value)}) for value in values]

    def produce(self, *values: bytes, partition: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "linger.ms": 1})
        for value in values:
            producer.produce(self.name, value=value, partition=partition)
        assert producer.flush(PATIENCE_S) == 0

    # --- what Redis shows ---

    def group(self, group: str, partition: int = 0) -> dict[str, Any] | None:
        for found in self.store.xinfo_groups(self.key(partition)):
            if found["name"] == group.encode():
                facts: dict[str, Any] = found
                return facts
        return None

    def pending(self, group: str, partition: int = 0) -> dict[str, int]:
        """How many entries each consumer has pending."""
        found = self.store.xpending(self.key(partition), group)
        return {one["name"].decode(): one["pending"] for one in found["consumers"]}

    def consumers(self, group: str, partition: int = 0) -> list[str]:
        found = self.store.xinfo_consumers(self.key(partition), group)
        return [one["name"].decode() for one in found]

    def wait_for_pending(self, group: str, count: int, partition: int = 0) -> None:
        def reached() -> bool:
            total: int = self.store.xpending(self.key(partition), group)["pending"]
            return total == count

        wait_until(reached, PATIENCE_S, f"{count} entries are pending")

    # --- the Kafka side ---

    @contextmanager
    def member(self, group: str, **settings: object) -> Iterator["Member"]:
        member = Member(self, group, **settings)
        try:
            yield member
        finally:
            member.close()


class Member:
    """A consumer that commits on request."""

    def __init__(self, topic: Native, group: str, **settings: object) -> None:
        self.topic = topic
        self.group = group
        self._consumer: Any = Consumer(
            {
                "bootstrap.servers": topic.broker.bootstrap,
                "group.id": group or "none",
                "client.id": f"client-{uuid.uuid4().hex[:8]}",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 200,
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )
        self._closed = False
        if group:
            self._consumer.subscribe([topic.name])

    @property
    def member_id(self) -> str:
        found: str = self._consumer.memberid()
        return found

    def read(self, count: int) -> list[bytes]:
        """That many values; fails when they do not come."""
        values: list[bytes] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(values) < count:
            assert time.monotonic() < deadline, f"{len(values)} of {count} came\n{values[-5:]}"
            values += self.poll(0.2)
        return values

    def poll(self, seconds: float) -> list[bytes]:
        message = self._consumer.poll(seconds)
        if message is None:
            return []
        if message.error():
            raise KafkaException(message.error())
        return [message.value()]

    def join_only(self) -> None:
        """Join, and wait for the partitions; nothing is fetched of them."""

        def take(consumer: Any, places: list[TopicPartition]) -> None:
            consumer.assign(places)
            consumer.pause(places)

        self._consumer.unsubscribe()
        self._consumer.subscribe([self.topic.name], on_assign=take)
        wait_until(
            lambda: not self.poll(0.05) and bool(self.assigned()), PATIENCE_S, "it has partitions"
        )

    def assign_only(self, partition: int) -> None:
        """Read a partition without a group."""
        self._consumer.unsubscribe()
        self._consumer.assign([TopicPartition(self.topic.name, partition, OFFSET_BEGINNING)])

    def assigned(self) -> list[int]:
        return sorted(one.partition for one in self._consumer.assignment())

    def seek(self, offset: int, partition: int = 0) -> None:
        self._consumer.seek(TopicPartition(self.topic.name, partition, offset))

    def commit(self) -> None:
        self._consumer.commit(asynchronous=False)

    def commit_at(self, offset: int, partition: int = 0) -> None:
        place = TopicPartition(self.topic.name, partition, offset)
        self._consumer.commit(offsets=[place], asynchronous=False)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._consumer.close()


def offset_of(raw: bytes, bits: int = 10) -> int:
    ms, _, seq = raw.partition(b"-")
    return (int(ms) << bits) + int(seq)


def group_commands(monitor: Monitor, topic: Native, group: str) -> list[str]:
    """The commands in the group's name, without member ids; repeated ones once."""
    found: list[str] = []
    for command in monitor.commands(topic.key()):
        if group in command.split(" ") and not command.startswith("XPENDING"):  # which is ours
            text = re.sub(r"client-\S+", "<member>", command)
            text = re.sub(r" COUNT \d+", "", text)
            if not found or found[-1] != text:
                found.append(text)
    return found


def fetched_offset(topic: Native, group: str) -> int:
    """What OffsetFetch answers for the first partition."""
    named = [OffsetFetchRequestTopics(topic.name, partition_indexes=[0])]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group, topics=named)])
    with RawClient(coordinator_port(topic.broker, group)) as client:
        found = client.call(request, 9).groups[0].topics[0].partitions[0]
    assert found.error_code == 0
    committed: int = found.committed_offset
    return committed
