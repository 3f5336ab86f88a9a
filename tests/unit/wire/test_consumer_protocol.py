"""The consumers' embedded protocol: subscriptions and assignments, also as clients write them."""

import importlib
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.broker.wire.consumer_protocol import assigned_partitions, subscribed_topics
from tests.support.raw import kafka_python


def string(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()


def topic_list(*names: str) -> bytes:
    return struct.pack(">i", len(names)) + b"".join(map(string, names))


V0 = topic_list("t", "ü") + struct.pack(">i", 2) + b"ud"
OWNED = struct.pack(">i", 1) + string("t") + struct.pack(">ii", 1, 0)


@pytest.mark.parametrize(
    "metadata",
    [
        b"\x00\x00" + V0,
        b"\x00\x01" + V0 + OWNED,
        b"\x00\x02" + V0 + OWNED + struct.pack(">i", 5),
        b"\x00\x03" + V0 + OWNED + struct.pack(">i", 5) + string("rack"),
        b"\x00\x09" + V0 + b"whatever comes later",
    ],
)
def test_the_topics_of_a_subscription_of_any_version(metadata: bytes) -> None:
    assert subscribed_topics(metadata) == frozenset({"t", "ü"})


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        b"\x00",
        b"\xff\xff" + V0,
        b"\x00\x00" + struct.pack(">i", -1),
        b"\x00\x00" + struct.pack(">i", 2**31 - 1) + string("t"),
        b"\x00\x00" + struct.pack(">ih", 1, -1),
        b"\x00\x00" + struct.pack(">ih", 1, 5) + b"abc",
        b"\x00\x00" + struct.pack(">ih", 1, 1) + b"\xff",
    ],
)
def test_what_is_no_subscription_is_unknown(metadata: bytes) -> None:
    assert subscribed_topics(metadata) is None


@given(st.binary(max_size=60))
def test_no_bytes_make_it_fail(metadata: bytes) -> None:
    subscribed_topics(metadata)


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_subscriptions_as_kafka_python_writes_them(version: int) -> None:
    assert kafka_python.PROTOCOL  # imports kafka without its warnings
    metadata: Any = importlib.import_module("kafka.protocol.consumer.metadata")
    fields: dict[str, object] = {"topics": ["t", "u"], "user_data": b"x"}
    if version >= 1:
        owned = metadata.ConsumerProtocolSubscription.TopicPartition(topic="t", partitions=[0])
        fields["owned_partitions"] = [owned]
    written = metadata.ConsumerProtocolSubscription(version=version, **fields).encode()
    assert struct.unpack_from(">h", written) == (version,)
    assert subscribed_topics(bytes(written)) == frozenset({"t", "u"})


def test_subscriptions_as_aiokafka_writes_them() -> None:
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

    written = RoundRobinPartitionAssignor.metadata({"t", "u"}).encode()
    assert subscribed_topics(written) == frozenset({"t", "u"})


def assigned(topic: str, *partitions: int) -> bytes:
    return string(topic) + struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)


TWO_TOPICS = struct.pack(">hi", 0, 2) + assigned("t", 0, 3) + assigned("ü", 1)


@pytest.mark.parametrize("rest", [b"", struct.pack(">i", -1), b"whatever comes later"])
def test_the_partitions_of_an_assignment(rest: bytes) -> None:
    assert assigned_partitions(TWO_TOPICS + rest) == [("t", 0), ("t", 3), ("ü", 1)]


def test_no_assignment_is_no_partitions() -> None:
    assert assigned_partitions(b"") == []


@pytest.mark.parametrize(
    "assignment",
    [
        b"\x00",
        b"\xff\xff" + TWO_TOPICS[2:],
        TWO_TOPICS[:-1],
        struct.pack(">hi", 0, -1),
        struct.pack(">hi", 0, 1) + string("t") + struct.pack(">i", -1),
        struct.pack(">hi", 0, 1) + string("t") + struct.pack(">i", 2**31 - 1),
    ],
)
def test_what_is_no_assignment_is_unknown(assignment: bytes) -> None:
    assert assigned_partitions(assignment) is None


@given(st.binary(min_size=1, max_size=60))
def test_no_bytes_make_reading_an_assignment_fail(assignment: bytes) -> None:
    assigned_partitions(assignment)
