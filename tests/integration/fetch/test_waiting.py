"""Fetch that waits: what wakes it, what ends it, and what waiting costs.

Section 5 of Kafka's behaviours carries its number.
"""

import os
import socket
import statistics
import time
from collections.abc import Callable

import psutil  # type: ignore[import-untyped]
import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.apis import APIS, ApiKey
from moldau.broker.wire.frame import request_frame
from moldau.broker.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.broker.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from moldau.broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.support.brokers.running import Broker, wait_until
from tests.support.proofs.hammer import worker_ports
from tests.support.raw.calls import create_topic
from tests.support.raw.client import NAMED_FETCH, RawClient, make_batch, records_in
from tests.support.raw.fetching import LONG_MS, Where, offsets, parked, produce_request

# --- waiting ---


def test_5_at_the_end_it_waits_as_long_as_asked(where: Where) -> None:
    where.fill(1)
    for client in where.everywhere():
        started = time.monotonic()
        answer = client.fetch(where.topic, 1, max_wait_ms=300, min_bytes=1)
        assert time.monotonic() - started >= 0.29
        assert (answer.error_code, answer.high_watermark) == (0, 1)
        assert not answer.records


def test_without_waiting_it_answers_at_once(where: Where) -> None:
    for options in ({"max_wait_ms": 0, "min_bytes": 1}, {"max_wait_ms": LONG_MS, "min_bytes": 0}):
        answer = where.leader.fetch(where.topic, 0, **options)
        assert (answer.error_code, answer.high_watermark) == (0, 0)


@pytest.mark.parametrize("reader", ["leader", "other", "third"])
@pytest.mark.parametrize("writer", ["leader", "other"])
def test_a_parked_fetch_is_woken_by_an_append(where: Where, reader: str, writer: str) -> None:
    """Reader and writer are on one worker, on the leader and another, or on two others."""
    client: RawClient = getattr(where, reader)
    for number in range(3):  # the first time the log has to be loaded
        waiting = parked(_port(client), where.topic, number)
        sender: RawClient = getattr(where, writer)
        assert sender.produce(where.topic, make_batch([(None, b"x", 1)])).base_offset == number
        answer = waiting.woken()
        assert [record.offset for record in records_in(answer)] == [number]
        assert answer.high_watermark == number + 1


def _port(client: RawClient) -> int:
    port: int = client._socket.getpeername()[1]
    return port


@pytest.mark.parametrize("writer", ["leader", "other"])
def test_min_bytes_waits_for_enough_and_counts_what_was_there(where: Where, writer: str) -> None:
    size = where.fill(1, size=1_000)[0]
    sender: RawClient = getattr(where, writer)
    waiting = parked(_port(where.leader), where.topic, 0, min_bytes=size * 3)
    batch = make_batch([(None, os.urandom(1_000), 1)])
    sender.produce(where.topic, batch)
    time.sleep(0.3)
    assert waiting.is_waiting
    sender.produce(where.topic, batch)
    assert offsets(waiting.woken()) == [(0, 1), (1, 2), (2, 3)]


def test_too_little_is_given_when_time_is_up(where: Where) -> None:
    where.fill(2)
    for client in where.everywhere():
        answer = client.fetch(where.topic, 0, max_wait_ms=200, min_bytes=1 << 20)
        assert offsets(answer) == [(0, 2)]


def test_one_partition_of_many_wakes_it(workers: list[RawClient]) -> None:
    where = Where(workers, partitions=6)
    with RawClient(_port(where.leader), timeout=90) as client:
        wanted = [FetchPartition(number, partition_max_bytes=1 << 20) for number in range(6)]
        request = FetchRequest(
            max_wait_ms=LONG_MS, min_bytes=1, topics=[FetchTopic(where.topic, partitions=wanted)]
        )
        for number in range(6):
            wanted[number].fetch_offset = 0
            client.send(request, NAMED_FETCH)
            time.sleep(0.1)
            where.other.produce(where.topic, make_batch([(None, b"x", 1)]), partition=number)
            answer = client.receive()
            found = [len(offsets(part)) for part in answer.responses[0].partitions]
            assert found == [int(index == number) for index in range(6)]
            wanted[number].fetch_offset = 1


def test_an_error_of_one_partition_is_answered_at_once(where: Where) -> None:
    parts = [FetchPartition(0, partition_max_bytes=100), FetchPartition(9)]
    request = FetchRequest(
        max_wait_ms=LONG_MS, min_bytes=1, topics=[FetchTopic(where.topic, partitions=parts)]
    )
    good, bad = where.leader.call(request, NAMED_FETCH).responses[0].partitions
    assert good.error_code == 0
    assert bad.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("reader", ["leader", "other"])
def test_the_topic_is_deleted_while_it_waits(where: Where, reader: str) -> None:
    where.fill(1)
    waiting = parked(_port(getattr(where, reader)), where.topic, 1)
    deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name=where.topic)])
    assert where.third.call(deletion).responses[0].error_code == 0
    assert waiting.woken().error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_requests_behind_a_waiting_fetch_are_served_after_it(where: Where) -> None:
    with RawClient(_port(where.leader), timeout=90) as client:
        wanted = FetchPartition(0, partition_max_bytes=1 << 20)
        topics = [FetchTopic(where.topic, partitions=[wanted])]
        for _ in range(30):
            client.send(FetchRequest(max_wait_ms=20, min_bytes=1, topics=topics), NAMED_FETCH)
        client.send(MetadataRequest([MetadataRequestTopic(name=where.topic)]))
        for _ in range(30):
            assert isinstance(client.receive(), FetchResponse)
        assert client.receive().topics[0].name == where.topic


def test_connections_that_end_while_their_fetch_waits_leave_nothing_behind(
    broker: Broker, where: Where
) -> None:
    worker = psutil.Process(broker.pids("worker")[worker_ports(broker).index(_port(where.other))])
    frame = request_frame(
        APIS[ApiKey.FETCH],
        NAMED_FETCH,
        1,
        "gone",
        FetchRequest(
            max_wait_ms=(1 << 31) - 1,
            min_bytes=1,
            topics=[FetchTopic(where.topic, partitions=[FetchPartition(0)])],
        ),
    )
    before: list[int] = []
    for turn in range(12):
        clients = [socket.create_connection(("127.0.0.1", _port(where.other))) for _ in range(150)]
        for client in clients:
            client.sendall(frame)
        time.sleep(0.05)
        for client in clients:
            client.close()
        wait_until(lambda: worker.num_fds() < 100, 30, "their connections are closed")
        if turn == 3:
            before = [worker.memory_info().rss]
    assert worker.memory_info().rss - before[0] < 8 << 20
    # The log they waited on is as good as ever.
    waiting = parked(_port(where.other), where.topic, 0)
    where.third.produce(where.topic, make_batch([(None, b"x", 1)]))
    assert len(records_in(waiting.woken())) == 1


def test_shutting_down_answers_what_waits(start_moldau: Callable[..., Broker]) -> None:
    own = start_moldau(workers=1)
    with RawClient(worker_ports(own)[0]) as client:
        create_topic(client, "waited-on")
        waiting = parked(worker_ports(own)[0], "waited-on", 0)
        assert own.stop() == 0
        assert waiting.woken().error_code == 0


# --- what it costs ---


def test_waiting_costs_next_to_nothing(broker: Broker, where: Where) -> None:
    """Idle workers with readers that wait: under 1 % of a core when measured alone."""
    waiting = [parked(port, where.topic, 0) for port in worker_ports(broker) for _ in range(5)]
    processes = [psutil.Process(pid) for pid in (*broker.pids("worker"), *broker.pids("store"))]
    time.sleep(0.5)
    for _ in range(3):  # something else may be going on, once
        before = [sum(process.cpu_times()[:2]) for process in processes]
        seconds = 4.0
        time.sleep(seconds)
        used = [
            (sum(process.cpu_times()[:2]) - start) / seconds
            for process, start in zip(processes, before, strict=True)
        ]
        print("CPU of waiting workers and store:", ", ".join(f"{share:.2%}" for share in used))
        if max(used) < 0.05:
            break
    assert max(used) < 0.05
    where.leader.produce(where.topic, make_batch([(None, b"x", 1)]))
    for one in waiting:
        assert records_in(one.woken())


@pytest.mark.parametrize("reader", ["leader", "other"])
def test_latency_from_produce_to_consumer_is_reported(where: Where, reader: str) -> None:
    """Measured, not asserted: `pytest -rP` shows it."""
    port = _port(getattr(where, reader))
    times = []
    with RawClient(port, timeout=90) as client:
        wanted = FetchPartition(0, partition_max_bytes=1 << 20)
        topics = [FetchTopic(where.topic, partitions=[wanted])]
        for number in range(300):
            wanted.fetch_offset = number
            client.send(FetchRequest(max_wait_ms=LONG_MS, min_bytes=1, topics=topics), NAMED_FETCH)
            time.sleep(0.002)
            started = time.perf_counter()
            where.leader.send(produce_request(where.topic, make_batch([(None, b"x" * 100, 1)])), 12)
            answer = client.receive()
            times.append((time.perf_counter() - started) * 1_000)
            where.leader.receive()
            assert len(records_in(answer.responses[0].partitions[0])) == 1
    times.sort()
    print(
        f"produce to consumer through the {reader}: median {statistics.median(times):.2f} ms, "
        f"p99 {times[-3]:.2f} ms, worst {times[-1]:.2f} ms"
    )
