"""Records of a topic in the form of lake_rows.py, to be compared with a lake's."""

from __future__ import annotations

from typing import Any

from confluent_kafka import TIMESTAMP_CREATE_TIME, Consumer, TopicPartition

from tests.support.brokers.running import Broker
from tests.support.pipeline.lake_rows import Row


def rows_in(broker: Broker, topic: str) -> list[Row]:
    """Every record of a topic, by partition and offset."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "none"})
    found = []
    try:
        partitions = consumer.list_topics(topic, timeout=20).topics[topic].partitions
        left = {}
        for partition in partitions:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=20)
            left[partition] = high - low
        consumer.assign([TopicPartition(topic, p, 0) for p in partitions])
        while sum(left.values()):
            message: Any = consumer.poll(20)
            assert message is not None, f"{left} records of {topic} do not come"
            assert message.error() is None
            kind, stamp = message.timestamp()
            assert kind == TIMESTAMP_CREATE_TIME
            left[message.partition()] -= 1
            found.append(
                Row(message.partition(), message.offset(), message.key(), message.value(), stamp,
                    list(message.headers() or []))
            )  # fmt: skip
    finally:
        consumer.close()
    return sorted(found, key=lambda row: row[:2])
