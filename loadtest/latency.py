"""The latency benchmark: one small record at a time, from the produce call to the consumer.

Open loop: records go out on a schedule, whatever the broker does; a late one counts as late. The
consumer is parked in a Fetch at the end of the log. Baseline: a bare uvloop server's answer to as
small a request.
"""

from __future__ import annotations

import secrets
import socket
import struct
import subprocess
import sys
import threading
import time

from broker.wire.batch import headers
from broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from broker.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from loadtest.client import FETCH, PRODUCE, Client, RequestFailed
from loadtest.producing import VERSION as PRODUCE_VERSION
from loadtest.producing import leaders, make_batch
from loadtest.replay import Totals
from loadtest.target import Target

FETCH_VERSION = 12
RECORD_BYTES = 100


def record_latency(target: Target, per_second: float, seconds: float) -> Totals:
    """Latencies of `per_second * seconds` records."""
    topic = f"bench-{secrets.token_hex(4)}"
    with Client(target.host, target.port) as admin:
        admin.create_topic(topic, 1)
        try:
            where = leaders(admin, topic)[0]
            with Client(*where) as producer, Client(*where) as consumer:
                return _measure(producer, consumer, topic, per_second, seconds)
        finally:
            admin.delete_topic(topic)


def _measure(
    producer: Client, consumer: Client, topic: str, per_second: float, seconds: float
) -> Totals:
    count = int(per_second * seconds)
    arrivals: list[float] = []
    failure: list[BaseException] = []

    def consume() -> None:
        offset = 0
        try:
            while offset < count:
                partition = FetchPartition(0, fetch_offset=offset, partition_max_bytes=1 << 20)
                request = FetchRequest(
                    max_wait_ms=1000,
                    min_bytes=1,
                    topics=[FetchTopic(topic, partitions=[partition])],
                )
                answer = consumer.call(FETCH, FETCH_VERSION, request).responses[0].partitions[0]
                now = time.perf_counter()
                for header in headers(answer.records):
                    arrivals.extend([now] * header.record_count)
                    offset = header.next_offset
        except Exception as fault:
            failure.append(fault)

    reader = threading.Thread(target=consume)
    reader.start()
    batch = bytes(make_batch(RECORD_BYTES))
    data = TopicProduceData(topic, partition_data=[PartitionProduceData(0, batch)])
    request = ProduceRequest(None, -1, 30_000, [data])
    started = time.perf_counter()
    due = []
    for number in range(count):
        due.append(started + number / per_second)
        time.sleep(max(due[-1] - time.perf_counter(), 0))
        answer = producer.call(PRODUCE, PRODUCE_VERSION, request)
        if answer.responses[0].partition_responses[0].error_code:
            raise RequestFailed("a record was refused")
    reader.join()
    if failure:
        raise failure[0]
    elapsed = time.perf_counter() - started
    latencies = sorted(arrived - wanted for arrived, wanted in zip(arrivals, due, strict=True))
    return Totals(count, count * len(batch), elapsed, latencies)


def echo_latency(per_second: float, seconds: float) -> Totals:
    """Round trips of small frames to a bare uvloop server, on the same schedule."""
    count = int(per_second * seconds)
    server = subprocess.Popen(
        [sys.executable, "-m", "loadtest.echo", str(RECORD_BYTES)], stdout=subprocess.PIPE
    )
    assert server.stdout is not None
    try:
        port = int(server.stdout.readline())
        frame = struct.pack(">i", RECORD_BYTES) + bytes(RECORD_BYTES)
        latencies = []
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            started = time.perf_counter()
            for number in range(count):
                due = started + number / per_second
                time.sleep(max(due - time.perf_counter(), 0))
                connection.sendall(frame)
                left = len(frame)
                while left:
                    left -= len(connection.recv(left))
                latencies.append(time.perf_counter() - due)
            elapsed = time.perf_counter() - started
    finally:
        server.terminate()
        server.wait()
        server.stdout.close()
    return Totals(count, count * len(frame), elapsed, sorted(latencies))
