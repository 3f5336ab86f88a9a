"""Kafka's consumer protocol, version 0: what members of a group send each other.

broker/wire/consumer_protocol.py reads assignments; only clients write them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

VERSION = 0
NO_USER_DATA = struct.pack(">i", -1)


def _one_topic(topic: str) -> bytes:
    name = topic.encode()
    return struct.pack(">hih", VERSION, 1, len(name)) + name


def subscription(topic: str) -> bytes:
    """A ConsumerProtocolSubscription to one topic."""
    return _one_topic(topic) + NO_USER_DATA


def assignment(topic: str, partitions: Sequence[int]) -> bytes:
    """A ConsumerProtocolAssignment of partitions of one topic."""
    numbers = struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)
    return _one_topic(topic) + numbers + NO_USER_DATA
