"""The router from outside: whom requests reach, replies in order, back-pressure, deaths, leaks."""

from __future__ import annotations

import contextlib
import random
import select
import signal
import socket
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
from confluent_kafka import Producer

from broker.placement import leader_of
from broker.wire.apis import APIS
from broker.wire.frame import LENGTH, request_frame
from broker.wire.messages.api_versions import ApiVersionsRequest
from broker.wire.messages.delete_groups import DeleteGroupsRequest
from broker.wire.messages.describe_groups import DescribeGroupsRequest
from broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from broker.wire.messages.find_coordinator import FindCoordinatorRequest
from broker.wire.messages.heartbeat import HeartbeatRequest
from broker.wire.messages.list_groups import ListGroupsRequest
from broker.wire.messages.metadata import MetadataRequest
from broker.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from broker.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from router.slots import owner_of
from tests.support.raw_calls import create_topic
from tests.support.raw_client import RawClient, make_batch, records_in
from tests.support.raw_group import RawMember
from tests.support.running import Broker, remove_dir, short_temp_dir, wait_until

Start = Callable[..., Broker]
NOT_AVAILABLE, UNKNOWN_MEMBER = 15, 25
NAMED = 12


@pytest.fixture(scope="module")
def routed() -> Iterator[Broker]:
    """Two workers, of which clients are told nothing."""
    directory = short_temp_dir()
    broker = Broker.start(directory, workers=2, advertise="router")
    try:
        yield broker
    finally:
        code = broker.stop()
        log = broker.log()
        remove_dir(directory)
    assert code == 0, log


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


# --- whom requests reach ---------------------------------------------------------------------


def test_groups_of_both_workers_by_one_connection(routed: Broker) -> None:
    """Heartbeats say so when they reach a worker that is not the owner."""
    with RawClient(routed.port) as client:
        # While a worker loads its groups, heartbeats are answered with 0.
        wait_until(lambda: not client.call(ListGroupsRequest()).error_code, 20, "groups loaded")
        for worker in (0, 1, 0, 1):
            answer = client.call(HeartbeatRequest(owned_by(worker), 1, "nobody"))
            assert answer.error_code == UNKNOWN_MEMBER


def test_the_coordinator_is_the_router(routed: Broker, moldau: Broker) -> None:
    for broker in (routed, moldau):
        with RawClient(broker.port) as client:
            for worker in (0, 1):
                found = client.call(FindCoordinatorRequest(owned_by(worker)), 3)
                expected = broker.port if broker is routed else broker.port + 1 + worker
                assert (found.error_code, found.port) == (0, expected)


def test_groups_are_described_listed_and_deleted_whoever_owns_them(routed: Broker) -> None:
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
            # Not the router's: who really is there.
            assert {each.members[0].client_host for each in described} == {"127.0.0.1"}
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


def test_produce_and_fetch_by_leader_and_by_home(routed: Broker) -> None:
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

            # The leader hears of what was appended by way of another worker.
            wait_until(lambda: len(values()) == 3, 20, "the leader has heard of it")
            assert values() == [b"first", b"second", b"third"]


# --- order and parking -----------------------------------------------------------------------


def test_replies_come_in_the_order_of_requests_whoever_is_faster(routed: Broker) -> None:
    topic = new_topic(routed)
    with RawClient(routed.port) as client:
        started = time.monotonic()
        sent = [
            client.send(fetch_of(topic, led_by(topic, 0), wait_ms=400), NAMED),  # parked
            client.send(HeartbeatRequest(owned_by(1), 1, "nobody")),
            client.send(ApiVersionsRequest()),  # the router's own
            client.send(DescribeGroupsRequest([owned_by(1), owned_by(0)])),  # merged
            client.send(HeartbeatRequest(owned_by(0), 1, "nobody")),
            client.send(MetadataRequest([])),
            client.send(ListGroupsRequest()),
            client.send(HeartbeatRequest(owned_by(1), 1, "nobody")),
        ]
        kinds = [type(client.receive()).__name__ for _ in sent]
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


def test_a_parked_request_holds_back_nobody_else(routed: Broker) -> None:
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
    """More than are taken without an answer: the rest has to wait, and is not forgotten."""
    ask = HeartbeatRequest(owned_by(1), 1, "nobody")
    for mixed in (False, True):
        count = 6000
        data = b"".join(
            request_frame(APIS[18], 3, number, "many", ApiVersionsRequest())
            if mixed and number % 3
            else request_frame(APIS[12], 4, number, "many", ask)
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
        data += request_frame(APIS[0], NAMED, number, "pieces", produce)
        data += request_frame(APIS[18], 3, 1000 + number, "pieces", ApiVersionsRequest())
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


def test_acks_0_is_sent_on_and_failure_is_told_by_hanging_up(routed: Broker) -> None:
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
        assert client.call(ApiVersionsRequest()).error_code == 0  # the connection is in order
        for number in range(2):
            wait_until(
                lambda number=number: bool(  # type: ignore[misc]
                    records_in(client.fetch(topic, 0, partition=number))
                ),
                20,
                "it is in the log",
            )
        request.topic_data[0].partition_data[0].index = 77
        client.send(request, NAMED)
        with pytest.raises(ConnectionError):
            client.receive()


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        struct.pack(">ihhih", 10, 99, 0, 1, -1),  # no such API
        struct.pack(">ihhih", 10, 1, 99, 1, -1),  # no such version
        struct.pack(">ihhih", 10, 32767, 0, 1, -1),  # what only routers say, and not over TCP
        struct.pack(">ihhihh", 12, 12, 0, 1, -1, 500),  # the group id overruns
        struct.pack(">i", -5),
        struct.pack(">i", 2_000_000_000),
    ],
)
def test_what_is_no_request_is_hung_up_on(routed: Broker, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", routed.port), 20) as connection:
        connection.sendall(sent)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(100) == b""


# --- back-pressure ---------------------------------------------------------------------------


def rss(pid: int) -> int:
    return int(psutil.Process(pid).memory_info().rss)


def test_who_does_not_read_is_not_read_from_and_costs_no_memory(routed: Broker) -> None:
    topic = new_topic(routed, 1)
    with RawClient(routed.port) as client:
        for _ in range(8):
            assert client.produce(topic, batch(bytes(900_000))).error_code == 0
    fetch = request_frame(APIS[1], NAMED, 1, "slow", fetch_of(topic, 0, wait_ms=0))
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
                assert sent < 64 << 20, "it is read from for ever"
                try:
                    sent += slow.send(fetch * 100)
                    quiet_since = time.monotonic()
                except BlockingIOError:
                    select.select([], [slow], [], 0.1)
        assert rss(router) - before < 64 << 20
        with RawClient(routed.port) as other:  # and nobody else notices
            assert other.call(ApiVersionsRequest()).error_code == 0


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


# --- connections come and go -----------------------------------------------------------------


def test_idle_connections_cost_little_and_leave_nothing(routed: Broker) -> None:
    hold_idle(routed, 1000)


def hold_idle(broker: Broker, count: int) -> None:
    router = psutil.Process(broker.pids("router")[0])
    descriptors = router.num_fds()
    ask = request_frame(APIS[3], 9, 1, "idle", MetadataRequest([]))
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
    wait_until(lambda: router.num_fds() <= descriptors + 2, 20, "descriptors are given back")


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
        request_frame(APIS[12], 4, 1, "c", HeartbeatRequest(owned_by(w), 1, "x")) for w in (0, 1)
    ]
    parked = request_frame(APIS[1], NAMED, 1, "c", fetch_of(topic, 0, wait_ms=60_000))
    one_round(broker, asks, parked, 50)  # what is made once is made now
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
            20,
            "descriptors are given back",
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


# --- deaths ----------------------------------------------------------------------------------


def test_while_a_worker_is_away_its_groups_are_refused_and_the_rest_goes_on(
    start_moldau: Start,
) -> None:
    broker = start_moldau(workers=2, advertise="router")
    topic = new_topic(broker)
    mine, others = owned_by(0), owned_by(1)
    with RawClient(broker.port) as waiting, RawClient(broker.port) as other:
        other.call(HeartbeatRequest(others, 1, "x"))
        waiting.send(fetch_of(topic, led_by(topic, 0), wait_ms=60_000), NAMED)
        assert other.call(HeartbeatRequest(mine, 1, "x")).error_code == UNKNOWN_MEMBER
        old = broker.kill("worker", 0)
        begun = time.monotonic()
        with pytest.raises(ConnectionError):  # not left to wait for its timeout
            waiting.receive()
        assert time.monotonic() - begun < 20
        wait_until(lambda: broker.processes("worker")[0]["pid"] != old, 20, "it is gone for good")
        # The other one's connection goes on, though it has spoken to that worker before.
        while other.call(HeartbeatRequest(mine, 1, "x")).error_code != NOT_AVAILABLE:
            assert time.monotonic() - begun < 20
        described = other.call(DescribeGroupsRequest([mine, others]), 5).groups
        assert [(each.group_id, each.error_code) for each in described] == [
            (mine, NOT_AVAILABLE),
            (others, 0),
        ]
        assert other.call(ListGroupsRequest()).error_code == NOT_AVAILABLE
        assert other.call(HeartbeatRequest(others, 1, "x")).error_code == UNKNOWN_MEMBER
        # Partitions it leads are served by whoever is there.
        assert other.produce(topic, batch(b"x"), partition=led_by(topic, 0)).error_code == 0
        broker.wait_restarted("worker", 0, old)

        def is_served() -> bool:
            return bool(other.call(HeartbeatRequest(mine, 1, "x")).error_code == UNKNOWN_MEMBER)

        wait_until(is_served, 20, "the group is served again")


def test_a_killed_router_is_back_and_the_other_went_on(start_moldau: Start) -> None:
    broker = start_moldau(workers=1, routers=2)
    other = broker.pids("router")[1]
    old = broker.kill("router", 0)
    broker.wait_restarted("router", 0, old)
    routers = broker.processes("router")
    assert routers[0]["restarts"] == 1
    assert (routers[1]["pid"], routers[1]["restarts"]) == (other, 0)
    for _ in range(20):
        with RawClient(broker.port) as client:
            assert client.call(MetadataRequest([])).brokers


@pytest.mark.slow
def test_a_router_that_hangs_is_replaced(start_moldau: Start) -> None:
    broker = start_moldau(workers=1)
    old = broker.kill("router", 0, signal.SIGSTOP)
    broker.wait_restarted("router", 0, old, patience_s=60)
    assert "router 0 hangs: killed" in broker.log()


def test_parked_requests_are_answered_when_it_is_asked_to_stop(start_moldau: Start) -> None:
    broker = start_moldau(workers=2, advertise="router")
    topic = new_topic(broker)
    with RawClient(broker.port) as client, RawClient(broker.port) as idle:
        assert idle.call(MetadataRequest([])).brokers
        client.send(fetch_of(topic, led_by(topic, 1), wait_ms=60_000), NAMED)
        client.send(MetadataRequest([]))
        time.sleep(0.2)  # so that it is parked; if it is not, it is answered all the same
        broker.process.terminate()
        (found,) = client.receive().responses[0].partitions
        assert found.error_code == 0
        assert type(client.receive()).__name__ == "MetadataResponse"
        with pytest.raises(ConnectionError):
            idle.receive()
    assert broker.process.wait(10) == 0, broker.log()


def test_nothing_acknowledged_is_lost_while_routers_and_workers_die(start_moldau: Start) -> None:
    die_at_random(start_moldau(workers=2, routers=2, advertise="router"), seconds=8)


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_in_a_minute_of_deaths(start_moldau: Start) -> None:
    die_at_random(start_moldau(workers=2, routers=2, advertise="router"), seconds=60)


def die_at_random(broker: Broker, seconds: float) -> None:
    topic = new_topic(broker, 4)
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 2,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "delivery.timeout.ms": 120_000,
        }
    )
    acknowledged: list[list[tuple[int, bytes]]] = [[] for _ in range(4)]
    failed: list[Any] = []

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            failed.append(error)
        else:
            acknowledged[message.partition()].append((message.offset(), message.value()))

    rng = random.Random(3)
    stop = threading.Event()
    killed: list[str] = []

    def kill() -> None:
        while not stop.wait(rng.uniform(0.4, 1.2)):
            role, index = rng.choice(("router", "worker")), rng.randrange(2)
            with contextlib.suppress(IndexError, ProcessLookupError):
                broker.kill(role, index)
                killed.append(role)

    killer = threading.Thread(target=kill)
    killer.start()
    sent = 0
    begun = time.monotonic()
    while time.monotonic() - begun < seconds:
        with contextlib.suppress(BufferError):
            producer.produce(topic, b"%08d" % sent, partition=sent % 4, on_delivery=delivered)
            sent += 1
        producer.poll(0)
        if sent % 50 == 0:
            time.sleep(0.005)
    stop.set()
    killer.join()
    assert producer.flush(120) == 0, broker.log()
    assert {"router", "worker"} <= set(killed)
    assert not failed
    assert sum(map(len, acknowledged)) == sent
    for partition in range(4):
        stored = read_all(broker, topic, partition, len(acknowledged[partition]))
        # Once each, at the offset that was told, in the order in which they were sent.
        assert stored == sorted(acknowledged[partition])
        assert [value for _, value in stored] == sorted(value for _, value in stored)


def read_all(broker: Broker, topic: str, partition: int, count: int) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    deadline = time.monotonic() + 60
    while True:
        assert time.monotonic() < deadline
        try:
            with RawClient(broker.port) as client:
                while True:
                    answer = client.fetch(topic, len(found), partition=partition)
                    assert answer.error_code in (0, 6), answer
                    records = records_in(answer)
                    fresh = [one for one in records if one.offset >= len(found)]
                    if not fresh and len(found) >= count:
                        return found
                    found += [(one.offset, bytes(one.value or b"")) for one in fresh]
        except (ConnectionError, TimeoutError):
            time.sleep(0.1)
