"""The router from outside: which worker requests reach, and replies in order."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from moldau.broker.wire.apis import APIS, ApiKey
from moldau.broker.wire.frame import request_frame
from moldau.broker.wire.messages.api_versions import ApiVersionsRequest
from moldau.broker.wire.messages.delete_groups import DeleteGroupsRequest
from moldau.broker.wire.messages.describe_groups import DescribeGroupsRequest
from moldau.broker.wire.messages.find_coordinator import FindCoordinatorRequest
from moldau.broker.wire.messages.heartbeat import HeartbeatRequest
from moldau.broker.wire.messages.list_groups import ListGroupsRequest
from moldau.broker.wire.messages.metadata import MetadataRequest
from moldau.broker.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from moldau.broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from moldau.broker.wire.schema import Message
from tests.support.brokers.routed import (
    NAMED,
    UNKNOWN_MEMBER,
    Start,
    batch,
    correlation_of,
    fetch_of,
    led_by,
    new_topic,
    owned_by,
    routed_broker,
)
from tests.support.brokers.running import Broker, wait_until
from tests.support.raw.client import RawClient, records_in
from tests.support.raw.group import RawMember


@pytest.fixture(scope="module")
def routed() -> Iterator[Broker]:
    """Two workers, which are not advertised to clients."""
    yield from routed_broker()


# --- which worker requests reach ---


def test_groups_of_both_workers_by_one_connection(routed: Broker) -> None:
    """A worker that is not the owner refuses heartbeats."""
    with RawClient(routed.port) as client:
        # While a worker loads its groups, heartbeats succeed.
        wait_until(lambda: not client.call(ListGroupsRequest()).error_code, 30, "groups loaded")
        for worker in (0, 1, 0, 1):
            answer = client.call(HeartbeatRequest(owned_by(worker), 1, "unknown"))
            assert answer.error_code == UNKNOWN_MEMBER


def test_the_coordinator_is_the_router(routed: Broker, moldau: Broker) -> None:
    for broker in (routed, moldau):
        with RawClient(broker.port) as client:
            for worker in (0, 1):
                found = client.call(FindCoordinatorRequest(owned_by(worker)), 3)
                expected = broker.port if broker is routed else broker.port + 1 + worker
                assert (found.error_code, found.port) == (0, expected)


def test_the_advertised_host_is_that_of_the_router_and_of_workers(start_moldau: Start) -> None:
    broker = start_moldau(workers=2, advertised_host="localhost")
    advertised = {0: ("localhost", broker.port + 1), 1: ("localhost", broker.port + 2)}
    for port in (broker.port, broker.port + 1):  # by the router, and by a worker
        with RawClient(port) as client:
            nodes = client.call(MetadataRequest([])).brokers
            assert {node.node_id: (node.host, node.port) for node in nodes} == advertised
            for worker in (0, 1):
                found = client.call(FindCoordinatorRequest(owned_by(worker)), 3)
                assert (found.host, found.port) == advertised[worker]


def test_groups_of_all_workers_are_described_listed_and_deleted(routed: Broker) -> None:
    groups = [owned_by(worker) for worker in (1, 0, 1, 0)]
    members = []
    for group in groups:
        member = RawMember(routed.port, group)
        member.enter()
        members.append(member)
    with RawClient(routed.port) as client:
        for version in range(7):
            described = client.call(DescribeGroupsRequest(groups), version).groups
            assert [each.group_id for each in described] == groups
            assert {each.group_state for each in described} == {"Stable"}
            # The client's address, not the router's.
            assert {each.members[0].client_host for each in described} == {"/127.0.0.1"}
        listed = {each.group_id for each in client.call(ListGroupsRequest()).groups}
        assert set(groups) <= listed
        asked = [OffsetFetchRequestGroup(group, topics=None) for group in reversed(groups)]
        found = client.call(OffsetFetchRequest(groups=asked), 8).groups
        assert [each.group_id for each in found] == groups[::-1]
        assert {each.error_code for each in found} == {0}
        for member in members:
            member.leave()
            member.close()
        results = client.call(DeleteGroupsRequest(groups)).results
        assert [(each.group_id, each.error_code) for each in results] == [
            (group, 0) for group in groups
        ]


def test_produce_and_fetch_by_leader_and_by_several_leaders(routed: Broker) -> None:
    topic = new_topic(routed)
    one, other = led_by(topic, 0), led_by(topic, 1)
    with RawClient(routed.port) as client:
        for partition in (one, other):
            assert client.produce(topic, batch(b"first"), partition=partition).error_code == 0
        mixed = ProduceRequest(
            acks=-1,
            timeout_ms=10_000,
            topic_data=[
                TopicProduceData(
                    topic,
                    partition_data=[
                        PartitionProduceData(partition, bytes(batch(b"second")))
                        for partition in (one, other)
                    ],
                )
            ],
        )
        (answered,) = client.call(mixed, NAMED).responses
        assert [each.error_code for each in answered.partition_responses] == [0, 0]
        for partition in (one, other):
            assert client.produce(topic, batch(b"third"), partition=partition).base_offset == 2

            def values(partition: int = partition) -> list[bytes | None]:
                found = client.fetch(topic, 0, partition=partition)
                return [record.value for record in records_in(found)]

            # The leader learns of what was appended through another worker.
            wait_until(lambda: len(values()) == 3, 30, "the leader has learned of it")
            assert values() == [b"first", b"second", b"third"]


# --- order and parking ---


def test_replies_come_in_the_order_of_requests(routed: Broker) -> None:
    topic = new_topic(routed)
    with RawClient(routed.port) as client:
        started = time.monotonic()
        requests: list[tuple[Message, int | None]] = [
            (fetch_of(topic, led_by(topic, 0), wait_ms=400), NAMED),  # parked
            (HeartbeatRequest(owned_by(1), 1, "unknown"), None),
            (ApiVersionsRequest("tests", "1"), None),  # the router's own
            (DescribeGroupsRequest([owned_by(1), owned_by(0)]), None),  # merged
            (HeartbeatRequest(owned_by(0), 1, "unknown"), None),
            (MetadataRequest([]), None),
            (ListGroupsRequest(), None),
            (HeartbeatRequest(owned_by(1), 1, "unknown"), None),
        ]
        for request, version in requests:
            client.send(request, version)
        # `receive` compares the correlation ids: a reply out of order fails it.
        kinds = [type(client.receive()).__name__ for _ in requests]
        assert time.monotonic() - started >= 0.4
    assert kinds == [
        "FetchResponse",
        "HeartbeatResponse",
        "ApiVersionsResponse",
        "DescribeGroupsResponse",
        "HeartbeatResponse",
        "MetadataResponse",
        "ListGroupsResponse",
        "HeartbeatResponse",
    ]


def test_a_parked_request_holds_back_no_other_client(routed: Broker) -> None:
    topic = new_topic(routed)
    partition = led_by(topic, 0)
    with RawClient(routed.port) as parked, RawClient(routed.port) as other:
        parked.send(fetch_of(topic, partition, wait_ms=20_000), NAMED)
        for _ in range(20):
            assert other.call(HeartbeatRequest(owned_by(0), 1, "x")).error_code == UNKNOWN_MEMBER
        assert other.produce(topic, batch(b"wake"), partition=partition).error_code == 0
        (found,) = parked.receive().responses[0].partitions
        assert [record.value for record in records_in(found)] == [b"wake"]


def test_many_requests_at_once(routed: Broker) -> None:
    """More than may be unanswered: the rest waits, and is not lost."""
    ask = HeartbeatRequest(owned_by(1), 1, "unknown")
    for mixed in (False, True):
        count = 6000
        data = b"".join(
            request_frame(
                APIS[ApiKey.API_VERSIONS], 3, number, "many", ApiVersionsRequest("tests", "1")
            )
            if mixed and number % 3
            else request_frame(APIS[ApiKey.HEARTBEAT], 4, number, "many", ask)
            for number in range(count)
        )
        with socket.create_connection(("127.0.0.1", routed.port), 30) as connection:
            sender = threading.Thread(target=connection.sendall, args=(data,))
            sender.start()
            assert [correlation_of(connection) for _ in range(count)] == list(range(count))
            sender.join()


def test_requests_in_any_pieces(routed: Broker) -> None:
    topic = new_topic(routed)
    partitions = [led_by(topic, 0), led_by(topic, 1)]
    rng = random.Random(7)
    data = bytearray()
    for number in range(60):
        produce = ProduceRequest(
            acks=-1,
            timeout_ms=10_000,
            topic_data=[
                TopicProduceData(
                    topic,
                    partition_data=[
                        PartitionProduceData(
                            partitions[number % 2], bytes(batch(b"%d" % number * 500))
                        )
                    ],
                )
            ],
        )
        data += request_frame(APIS[ApiKey.PRODUCE], NAMED, number, "pieces", produce)
        data += request_frame(
            APIS[ApiKey.API_VERSIONS], 3, 1000 + number, "pieces", ApiVersionsRequest("tests", "1")
        )
    with socket.create_connection(("127.0.0.1", routed.port), 30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def send() -> None:
            at = 0
            while at < len(data):
                step = rng.choice((1, 2, 3, 7, 100, 1000, 20_000))
                connection.sendall(data[at : at + step])
                at += step

        sender = threading.Thread(target=send)
        sender.start()
        answered = [correlation_of(connection) for _ in range(120)]
        sender.join()
    assert answered == [each for number in range(60) for each in (number, 1000 + number)]


def test_acks_0_is_forwarded_and_a_failure_closes_the_connection(routed: Broker) -> None:
    topic = new_topic(routed, 2)
    with RawClient(routed.port) as client:
        for number in range(2):
            request = ProduceRequest(
                acks=0,
                topic_data=[
                    TopicProduceData(
                        topic, partition_data=[PartitionProduceData(number, bytes(batch(b"x")))]
                    )
                ],
            )
            client.send(request, NAMED)
        assert (
            client.call(ApiVersionsRequest("tests", "1")).error_code == 0
        )  # the connection is intact
        for number in range(2):
            wait_until(
                lambda number=number: bool(  # type: ignore[misc]
                    records_in(client.fetch(topic, 0, partition=number))
                ),
                30,
                "it is in the log",
            )
        request.topic_data[0].partition_data[0].index = 77
        client.send(request, NAMED)
        client.must_be_closed()


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        struct.pack(">ihhih", 10, 99, 0, 1, -1),  # no such API
        struct.pack(">ihhih", 10, 1, 99, 1, -1),  # no such version
        struct.pack(">ihhih", 10, 32767, 0, 1, -1),  # only routers send it, and not over TCP
        struct.pack(">ihhihh", 12, 12, 0, 1, -1, 500),  # the group id overruns
        struct.pack(">i", -5),
        struct.pack(">i", 2_000_000_000),
    ],
)
def test_what_is_no_request_closes_the_connection(routed: Broker, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", routed.port), 20) as connection:
        connection.sendall(sent)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(100) == b""
