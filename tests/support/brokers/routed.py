"""What tests of the router share: names that belong to a worker, requests, a broker."""

from __future__ import annotations

import socket
import struct
import uuid
from collections.abc import Callable, Iterator

import psutil  # type: ignore[import-untyped]

from moldau.broker.errors import ErrorCode
from moldau.broker.placement import leader_of, owner_of
from moldau.broker.wire.frame import LENGTH
from moldau.broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tests.support.brokers.running import Broker, running_broker
from tests.support.raw.calls import create_topic
from tests.support.raw.client import RawClient, make_batch

Start = Callable[..., Broker]
NOT_AVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE
UNKNOWN_MEMBER = ErrorCode.UNKNOWN_MEMBER_ID
NAMED = 12  # the last version of Fetch and Produce that names topics


def routed_broker() -> Iterator[Broker]:
    """A broker with two workers, which are not advertised to clients, for a fixture."""
    settings = {"group.initial.rebalance.delay.ms": 0}
    with running_broker(workers=2, advertise="router", broker=settings) as broker:
        yield broker


def name() -> str:
    return f"r-{uuid.uuid4().hex[:10]}"


def owned_by(worker: int, workers: int = 2) -> str:
    while owner_of(group := name(), workers) != worker:
        pass
    return group


def batch(value: bytes) -> bytearray:
    return make_batch([(None, value, 0)])


def new_topic(broker: Broker, partitions: int = 4) -> str:
    topic = name()
    with RawClient(broker.port) as client:
        create_topic(client, topic, partitions=partitions)
    return topic


def led_by(topic: str, worker: int, workers: int = 2) -> int:
    return next(number for number in range(9) if leader_of(topic, number, workers) == worker)


def fetch_of(topic: str, partition: int, *, wait_ms: int, offset: int = 0) -> FetchRequest:
    wanted = FetchPartition(partition, fetch_offset=offset, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=wait_ms, min_bytes=1, topics=[FetchTopic(topic, partitions=[wanted])]
    )


def correlation_of(connection: socket.socket) -> int:
    """Read one response; its correlation id."""
    (size,) = LENGTH.unpack(exactly(connection, 4))
    return int(struct.unpack_from(">i", exactly(connection, size))[0])


def exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = connection.recv(size - len(data))
        assert piece, "the connection was closed"
        data += piece
    return bytes(data)


def rss(pid: int) -> int:
    return int(psutil.Process(pid).memory_info().rss)
