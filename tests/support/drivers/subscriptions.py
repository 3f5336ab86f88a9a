"""What consumers say when they join: their subscriptions, as the clients encode them."""

import struct

from moldau.broker.group.events import Protocols
from moldau.broker.group.offsets import TopicPartition


def subscription(*topics: str, version: int = 1) -> bytes:
    """ConsumerProtocolSubscription with no user data and no owned partitions."""
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", version, len(topics)) + names + struct.pack(">ii", -1, 0)


def consumer(*topics: str) -> Protocols:
    return (("range", subscription(*topics)),)


def keys(*names: str) -> list[TopicPartition]:
    return [TopicPartition(name, 0) for name in names]
