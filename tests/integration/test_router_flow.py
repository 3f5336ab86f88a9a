"""The router from outside: back-pressure, large requests, connections that come and go."""

from __future__ import annotations

import contextlib
import random
import select
import socket
import statistics
import threading
import time
from collections.abc import Iterator

import psutil  # type: ignore[import-untyped]
import pytest

from moldau.broker.wire.apis import APIS, ApiKey
from moldau.broker.wire.frame import request_frame
from moldau.broker.wire.messages.api_versions import ApiVersionsRequest
from moldau.broker.wire.messages.describe_groups import DescribeGroupsRequest
from moldau.broker.wire.messages.heartbeat import HeartbeatRequest
from moldau.broker.wire.messages.metadata import MetadataRequest
from moldau.broker.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from moldau.router.routing import MAX_SPLIT_BYTES
from tests.support.brokers.routed import (
    NAMED,
    Start,
    batch,
    correlation_of,
    fetch_of,
    name,
    new_topic,
    owned_by,
    routed_broker,
    rss,
)
from tests.support.brokers.running import Broker, wait_until
from tests.support.raw.calls import create_topic
from tests.support.raw.client import RawClient, records_in


@pytest.fixture(scope="module")
def routed() -> Iterator[Broker]:
    """Two workers, which are not advertised to clients."""
    yield from routed_broker()


# --- back-pressure ---


def test_a_client_that_does_not_read_is_not_read_from_and_costs_no_memory(routed: Broker) -> None:
    topic = new_topic(routed, 1)
    with RawClient(routed.port) as client:
        for _ in range(8):
            assert client.produce(topic, batch(bytes(900_000))).error_code == 0
    fetch = request_frame(APIS[ApiKey.FETCH], NAMED, 1, "slow", fetch_of(topic, 0, wait_ms=0))
    router = routed.pids("router")[0]
    before = rss(router)
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", routed.port), 20))
            slow.setblocking(False)
            sent = 0
            quiet_since = time.monotonic()
            # Until it takes no more: some 200,000 requests for a megabyte each otherwise.
            while time.monotonic() - quiet_since < 0.5:
                assert sent < 64 << 20, "it is read from without end"
                try:
                    sent += slow.send(fetch * 100)
                    quiet_since = time.monotonic()
                except BlockingIOError:
                    select.select([], [slow], [], 0.1)
        assert rss(router) - before < 64 << 20
        with RawClient(routed.port) as other:  # and other clients do not notice
            assert other.call(ApiVersionsRequest("tests", "1")).error_code == 0


@pytest.mark.parametrize("key", [ApiKey.HEARTBEAT, ApiKey.API_VERSIONS])
def test_a_client_that_sends_without_pause_does_not_hold_up_others(
    routed: Broker, key: ApiKey
) -> None:
    """ApiVersions, which the router answers itself, and Heartbeat, which a worker answers."""
    heartbeat = HeartbeatRequest(owned_by(0), 1, "x")
    ask = heartbeat if key is ApiKey.HEARTBEAT else ApiVersionsRequest("tests", "1")
    flood = request_frame(APIS[key], 0, 1, "flood", ask) * 100_000
    took: list[float] = []
    with socket.create_connection(("127.0.0.1", routed.port), 20) as flooding:

        def read() -> None:
            with contextlib.suppress(OSError):
                while flooding.recv(1 << 20):
                    pass

        def send() -> None:
            with contextlib.suppress(OSError):
                while True:
                    flooding.sendall(flood)

        threads = [threading.Thread(target=each) for each in (read, send)]
        for thread in threads:
            thread.start()
        time.sleep(0.2)
        with RawClient(routed.port) as other:
            until = time.monotonic() + 2
            while (begun := time.monotonic()) < until or len(took) < 5:
                assert other.call(ApiVersionsRequest("tests", "1")).error_code == 0
                took.append(time.monotonic() - begun)
        flooding.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
    # Seconds if it is held up; some take long anyway, on a machine that is busy with the flood.
    assert statistics.median(took) < 0.5


def test_a_large_request_and_a_large_reply_pass_through(routed: Broker) -> None:
    topic = name()
    with RawClient(routed.port) as client:
        create_topic(client, topic, {"max.message.bytes": 40 << 20}, partitions=2)
        value = random.Random(1).randbytes(30 << 20)
        for partition in range(2):
            assert client.produce(topic, batch(value), partition=partition).error_code == 0
        router = routed.pids("router")[0]
        before = rss(router)
        for partition in range(2):
            found = client.fetch(topic, 0, partition=partition, max_bytes=40 << 20)
            assert [record.value for record in records_in(found)] == [value]
        assert rss(router) - before < 24 << 20  # it went through in pieces


def test_requests_about_many_groups_are_split_however_long_they_are(routed: Broker) -> None:
    """More than a megabyte of names, in the pieces in which the network brings it."""
    groups = [f"{name()}-{'x' * 30}-{number}" for number in range(24_000)]
    with RawClient(routed.port) as client:
        described = client.call(DescribeGroupsRequest(groups), 5).groups
        assert [each.group_id for each in described] == groups
        # A single group, and so many topics that the request is longer than one that may be split.
        names = [f"{number:0240}" for number in range(MAX_SPLIT_BYTES // 240)]
        many = [OffsetFetchRequestTopics(each, partition_indexes=[0]) for each in names]
        asked = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(owned_by(1), topics=many)])
        (found,) = client.call(asked, 8).groups
        assert found.error_code == 0
        assert [each.name for each in found.topics] == names


# --- connections come and go ---


def test_idle_connections_cost_little_and_leave_nothing(routed: Broker) -> None:
    hold_idle(routed, 1000)


def hold_idle(broker: Broker, count: int) -> None:
    router = psutil.Process(broker.pids("router")[0])
    descriptors = router.num_fds()
    ask = request_frame(APIS[ApiKey.METADATA], 9, 1, "idle", MetadataRequest([]))
    clients: list[socket.socket] = []
    try:
        for _ in range(count):
            client = socket.create_connection(("127.0.0.1", broker.port), 20)
            client.sendall(ask)
            clients.append(client)
        for client in clients:
            assert correlation_of(client) == 1
        full = rss(router.pid)
        for _ in range(3):
            for client in clients:
                client.sendall(ask)
            for client in clients:
                assert correlation_of(client) == 1
        assert rss(router.pid) - full < 8 << 20
    finally:
        for client in clients:
            client.close()
    wait_until(lambda: router.num_fds() <= descriptors + 2, 30, "descriptors are closed")


@pytest.mark.slow
def test_5000_idle_connections(start_moldau: Start) -> None:
    hold_idle(start_moldau(workers=2, advertise="router"), 5000)


def test_connections_come_and_go_without_a_leak(routed: Broker) -> None:
    churn(routed, seconds=4)


@pytest.mark.slow
def test_connections_come_and_go_for_long_without_a_leak(start_moldau: Start) -> None:
    churn(start_moldau(workers=2, advertise="router"), seconds=30)


def churn(broker: Broker, seconds: float, per_second: int = 200) -> None:
    """Open, ask both workers, close; some in the middle of a request, some with one parked."""
    topic = new_topic(broker)
    pids = broker.pids("router") + broker.pids("worker")
    processes = [psutil.Process(pid) for pid in pids]
    asks = [
        request_frame(APIS[ApiKey.HEARTBEAT], 4, 1, "c", HeartbeatRequest(owned_by(w), 1, "x"))
        for w in (0, 1)
    ]
    parked = request_frame(APIS[ApiKey.FETCH], NAMED, 1, "c", fetch_of(topic, 0, wait_ms=60_000))
    one_round(broker, asks, parked, 50)  # what is allocated once is allocated now
    before = [(process.num_fds(), rss(process.pid)) for process in processes]
    begun = time.monotonic()
    done = 0
    while (passed := time.monotonic() - begun) < seconds:
        due = int(passed * per_second) - done
        if due > 0:
            one_round(broker, asks, parked, due)
            done += due
        time.sleep(0.01)
    for process, (descriptors, memory) in zip(processes, before, strict=True):
        wait_until(
            lambda process=process, descriptors=descriptors: (  # type: ignore[misc]
                process.num_fds() <= descriptors + 2
            ),
            30,
            "descriptors are closed",
        )
        assert rss(process.pid) - memory < 16 << 20


def one_round(broker: Broker, asks: list[bytes], parked: bytes, count: int) -> None:
    for number in range(count):
        with socket.create_connection(("127.0.0.1", broker.port), 20) as client:
            client.sendall(b"".join(asks))
            assert (correlation_of(client), correlation_of(client)) == (1, 1)
            if number % 3 == 0:
                client.sendall(parked)
            elif number % 3 == 1:
                client.sendall(asks[0][:20])
