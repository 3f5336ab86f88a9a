"""Fetch over real workers: its limits, its waiting, what wakes it, and what it costs to wait.

Section 5 of Kafka's behaviours carries its number. A worker that appended a batch serves it from
memory, one that never heard of the log from the store: both are asked wherever that matters.
"""

import os
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from broker.errors import ErrorCode
from broker.placement import leader_of
from broker.wire.apis import APIS, ApiKey
from broker.wire.batch import read_header
from broker.wire.frame import request_frame
from broker.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from broker.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.support.hammer import worker_ports
from tests.support.raw_calls import create_topic, delete_records
from tests.support.raw_client import NAMED_FETCH, RawClient, batches_in, make_batch, records_in
from tests.support.running import Broker, running_broker, wait_until

WORKERS = 3
LONG_MS = 60_000  # far longer than anything here takes
_names = (f"fetched-{number}" for number in count())


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with running_broker(workers=WORKERS) as started:
        yield started


@pytest.fixture(scope="module")
def workers(broker: Broker) -> Iterator[list[RawClient]]:
    clients = [RawClient(port, timeout=90) for port in worker_ports(broker)]
    yield clients
    for client in clients:
        client.close()


class Where:
    """A fresh topic of one partition: its leader, another worker, and a third one."""

    def __init__(self, workers: list[RawClient], partitions: int = 1) -> None:
        self.topic = next(_names)
        leader = leader_of(self.topic, 0, WORKERS)
        self.leader, self.other, self.third = (
            workers[(leader + step) % WORKERS] for step in range(WORKERS)
        )
        create_topic(self.leader, self.topic, partitions=partitions)

    def fill(self, *values: int, size: int = 100, partition: int = 0) -> list[int]:
        """Batches of so many records each, through the leader; their sizes."""
        sizes = []
        for records in values:
            batch = make_batch([(None, os.urandom(size), 1) for _ in range(records)])
            assert self.leader.produce(self.topic, batch, partition=partition).error_code == 0
            sizes.append(len(batch))
        return sizes

    def everywhere(self) -> list[RawClient]:
        return [self.leader, self.other, self.third]


@pytest.fixture
def where(workers: list[RawClient]) -> Where:
    return Where(workers)


def offsets(answer: Any) -> list[tuple[int, int]]:
    """First offset and the one after the last, of each batch."""
    found = [read_header(batch) for batch in batches_in(answer)]
    return [(header.base_offset, header.next_offset) for header in found]


def parked(port: int, topic: str, offset: int, **options: int) -> "Parked":
    return Parked(port, topic, offset, options)


class Parked:
    """A fetch that waits, on a connection of its own."""

    def __init__(self, port: int, topic: str, offset: int, options: dict[str, int]) -> None:
        self._client = RawClient(port, timeout=90)
        self.answer: Any = None
        chosen = {"max_wait_ms": LONG_MS, "min_bytes": 1, **options}

        def run() -> None:
            self.answer = self._client.fetch(topic, offset, **chosen)

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        time.sleep(0.15)  # until it is parked
        assert self._thread.is_alive(), f"answered at once: {self.answer}"

    @property
    def is_waiting(self) -> bool:
        return self._thread.is_alive()

    def woken(self) -> Any:
        """The answer, long before its time."""
        self._thread.join(LONG_MS / 4_000)
        assert not self._thread.is_alive(), "not woken"
        self._client.close()
        return self.answer


# --- whole batches, from the right place ---


def test_5_fetch_from_the_start_gives_everything_as_it_was_stored(where: Where) -> None:
    where.fill(3, 1, 5)
    blobs = []
    for client in where.everywhere():
        answer = client.fetch(where.topic, 0)
        assert offsets(answer) == [(0, 3), (3, 4), (4, 9)]
        assert (answer.high_watermark, answer.last_stable_offset) == (9, 9)
        assert answer.log_start_offset == 0
        blobs.append(b"".join(map(bytes, batches_in(answer))))
    assert len(set(blobs)) == 1


def test_5_6_4_fetch_in_the_middle_of_a_batch_gives_the_whole_batch(where: Where) -> None:
    where.fill(10, 10, 10)
    for client in where.everywhere():
        for offset, first in ((0, 0), (5, 0), (9, 0), (10, 10), (19, 10), (25, 20), (29, 20)):
            answer = client.fetch(where.topic, offset)
            assert offsets(answer)[0] == (first, first + 10)
            assert offsets(answer)[-1] == (20, 30)


def test_5_6_4_in_the_middle_of_an_entry_that_holds_many_batches(where: Where) -> None:
    """Batches that arrive together are stored together, and still served one by one."""
    sent = 40
    batch = make_batch([(None, os.urandom(50), 1) for _ in range(3)])
    for _ in range(sent):
        where.leader.send(_produce(where.topic, batch), 12)
    for _ in range(sent):
        where.leader.receive()
    for client in where.everywhere():
        for offset in range(0, sent * 3, 7):
            answer = client.fetch(where.topic, offset, max_bytes=len(batch) * 2)
            first = offset - offset % 3
            expected = [(first, first + 3), (first + 3, first + 6)]
            assert offsets(answer) == expected[: (sent * 3 - first) // 3]


def _produce(topic: str, batch: bytearray) -> Any:
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(0, memoryview(batch))])
    return ProduceRequest(acks=1, timeout_ms=10_000, topic_data=[data])


def test_5_limits_cut_at_the_edge_of_a_batch(where: Where) -> None:
    sizes = where.fill(*[2] * 8)
    for client in where.everywhere():
        for limit, expected in (
            (sizes[0], 1),
            (sizes[0] * 2 - 1, 1),
            (sizes[0] * 2, 2),
            (sizes[0] * 5 + 1, 5),
            (1 << 20, 8),
        ):
            answer = client.fetch(where.topic, 0, max_bytes=limit)
            assert len(offsets(answer)) == expected


@pytest.mark.parametrize("limit", [0, 1, 60])
def test_5_the_first_batch_comes_whole_even_when_larger_than_the_limits(
    where: Where, limit: int
) -> None:
    where.fill(5, 5)
    for client in where.everywhere():
        assert offsets(client.fetch(where.topic, 0, max_bytes=limit)) == [(0, 5)]
        assert offsets(client.fetch(where.topic, 7, max_bytes=limit)) == [(5, 10)]
        wanted = FetchPartition(0, fetch_offset=0, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_bytes=limit, topics=[FetchTopic(where.topic, partitions=[wanted])]
        )
        answer = client.call(request, NAMED_FETCH).responses[0].partitions[0]
        assert offsets(answer) == [(0, 5)]


def test_5_the_limit_of_the_whole_answer_spans_partitions(workers: list[RawClient]) -> None:
    where = Where(workers, partitions=4)
    for partition in range(4):
        where.fill(*[1] * 10, size=1_000, partition=partition)
    batch = where.fill(1, size=1_000)[0]
    for client in where.everywhere():
        for limit, most in ((batch * 3, 3), (1, 1), (batch * 25, 25)):
            answer = _fetch_all(client, where.topic, 4, limit)
            found = [len(offsets(part)) for part in answer.responses[0].partitions]
            assert sum(found) <= most
            assert found[0] >= 1
            assert all(part.error_code == 0 for part in answer.responses[0].partitions)
        everything = _fetch_all(client, where.topic, 4, 1 << 24)
        assert [len(offsets(part)) for part in everything.responses[0].partitions] == [
            11,
            10,
            10,
            10,
        ]


def _fetch_all(client: RawClient, topic: str, partitions: int, limit: int) -> FetchResponse:
    wanted = [
        FetchPartition(number, fetch_offset=0, partition_max_bytes=1 << 20)
        for number in range(partitions)
    ]
    request = FetchRequest(max_bytes=limit, topics=[FetchTopic(topic, partitions=wanted)])
    response: FetchResponse = client.call(request, NAMED_FETCH)
    return response


# --- out of range ---


def test_5_beyond_the_end_and_below_the_start_is_out_of_range(where: Where) -> None:
    where.fill(10)
    assert delete_records(where.leader, where.topic, 4).low_watermark == 4
    for client in where.everywhere():
        wait_until(
            lambda client=client: client.fetch(where.topic, 4).log_start_offset == 4,  # type: ignore[misc]
            10,
            "every worker knows the new start",
        )
        for offset in (-1, 0, 3, 11, 1 << 40):
            answer = client.fetch(where.topic, offset, max_wait_ms=LONG_MS, min_bytes=1)
            assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
            assert not answer.records
            assert (answer.high_watermark, answer.log_start_offset) == (10, 4)
        assert client.fetch(where.topic, 10).error_code == 0


def test_5_what_another_worker_appended_a_moment_ago_is_not_out_of_range(where: Where) -> None:
    """The leader is told of it a moment later; until then it looks for itself."""
    for number in range(150):
        writer = (where.other, where.third)[number % 2]
        written = writer.produce(where.topic, make_batch([(None, b"x", 1)])).base_offset
        for client in where.everywhere():
            answer = client.fetch(where.topic, written + 1)
            assert answer.error_code == 0, (number, answer)
            assert answer.high_watermark == written + 1


def test_unknown_partitions_topics_and_leader_epochs(where: Where) -> None:
    client = where.leader
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert client.fetch(where.topic, 0, partition=7).error_code == unknown
    assert client.fetch("nobody-made-this", 0).error_code == unknown
    by_id = FetchTopic(topic_id=bytes(range(16)), partitions=[FetchPartition(0)])
    answer = client.call(FetchRequest(topics=[by_id])).responses[0].partitions[0]
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    newer = FetchPartition(0, current_leader_epoch=5)
    request = FetchRequest(topics=[FetchTopic(where.topic, partitions=[newer])])
    answer = client.call(request, NAMED_FETCH).responses[0].partitions[0]
    assert answer.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


@pytest.mark.parametrize("version", range(4, 19))
def test_1_5_every_version_and_no_fetch_sessions(where: Where, version: int) -> None:
    where.fill(2)
    topic = FetchTopic(where.topic)
    if version >= 13:
        asked = MetadataRequest([MetadataRequestTopic(name=where.topic)])
        topic = FetchTopic(topic_id=where.leader.call(asked).topics[0].topic_id)
    topic.partitions = [FetchPartition(0, partition_max_bytes=1 << 20)]
    request = FetchRequest(max_wait_ms=100, min_bytes=1, session_epoch=0, topics=[topic])
    answer = where.leader.call(request, version)
    assert answer.session_id == 0
    assert offsets(answer.responses[0].partitions[0]) == [(0, 2)]


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
    """On the same worker, on the leader by another, on one that does not lead."""
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


def test_an_error_of_one_partition_is_told_at_once(where: Where) -> None:
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
        wait_until(lambda: worker.num_fds() < 100, 20, "their connections are closed")
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
    before = [sum(process.cpu_times()[:2]) for process in processes]
    seconds = 4.0
    time.sleep(seconds)
    used = [
        (sum(process.cpu_times()[:2]) - start) / seconds
        for process, start in zip(processes, before, strict=True)
    ]
    print("CPU of waiting workers and store:", ", ".join(f"{share:.2%}" for share in used))
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
            where.leader.send(_produce(where.topic, make_batch([(None, b"x" * 100, 1)])), 12)
            answer = client.receive()
            times.append((time.perf_counter() - started) * 1_000)
            where.leader.receive()
            assert len(records_in(answer.responses[0].partitions[0])) == 1
    times.sort()
    print(
        f"produce to consumer through the {reader}: median {statistics.median(times):.2f} ms, "
        f"p99 {times[-3]:.2f} ms, worst {times[-1]:.2f} ms"
    )
