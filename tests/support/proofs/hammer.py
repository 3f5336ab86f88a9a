"""A producer process that hammers partitions and reports what became of every record.

    python -m tests.support.proofs.hammer  < {"name": "p0", "ports": [9093, 9094], …}

It reads its orders as one JSON line, produces until they say enough or its standard input ends,
waits until everything is answered, and prints a `Report`. Records carry their producer's name and
number, so that the log can be compared with the reports (proof.py).

Idempotent, it does what clients do: up to five batches on their way per partition; after an error
or a lost connection everything unanswered is sent again, in order, perhaps to another worker.
Otherwise nothing is ever sent twice, so that a record the log holds twice is the broker's doing.
"""

import os
import random
import select
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO

import msgspec

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.messages.init_producer_id import InitProducerIdRequest
from moldau.broker.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from tests.support.brokers.running import ROOT, Broker, clean_environment
from tests.support.raw.client import NAMED_PRODUCE, RawClient, make_batch

NOT_THERE = (ConnectionError, TimeoutError, OSError)
# What says "not now": everything else is worth a report.
RETRIABLE = {
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,  # because something before it failed
}


class Orders(msgspec.Struct):
    name: str
    ports: list[int] = []  # of workers; it goes from one to the next
    topic: str = ""
    partitions: list[int] = []
    idempotent: bool = True
    seconds: float = 4.0
    patience_s: float = 60.0  # to get everything answered afterwards
    seed: int = 0
    most_records: int = 20
    most_bytes: int = 2_000  # of a record
    identical: bool = False  # every batch the same bytes: nothing distinguishes them
    switch_every: int = 0  # go to the next worker after so many requests, answered or not
    pause_s: float = 0.0  # between requests


class Sent(msgspec.Struct):
    """A batch: the numbers of its records, and where it was acknowledged (-1: it was not)."""

    partition: int
    first: int
    count: int
    offset: int = -1


class Report(msgspec.Struct):
    name: str
    idempotent: bool
    identical: bool
    sent: list[Sent]
    refusals: dict[str, int] = {}
    reconnects: int = 0
    fatal: str = ""


class Lane:
    """One partition: what is on its way there."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.next = 0
        self.unanswered: deque[tuple[Sent, bytearray]] = deque()
        self.out = 0  # how many of them are on their way
        self.failed = False  # all of them have to be sent again, once those are answered
        self.known = False  # the broker has seen a batch of ours


class Hammer:
    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self.report = Report(orders.name, orders.idempotent, orders.identical, [])
        self._random = random.Random(orders.seed)
        self._lanes = {number: Lane(number) for number in orders.partitions}
        self._client: RawClient | None = None
        self._waiting: deque[list[int]] = deque()  # the lanes of each request on its way
        self._port = self._random.randrange(len(orders.ports))
        self._requests = 0
        self._producer_id = -1

    def run(self) -> None:
        orders = self.orders
        stop_at = time.monotonic() + orders.seconds
        give_up_at = stop_at + orders.patience_s
        while not self.report.fatal:
            now = time.monotonic()
            if now < stop_at and _is_stopped():
                stop_at, give_up_at = now, now + orders.patience_s
            going_on = now < stop_at
            if not going_on and not any(lane.unanswered for lane in self._lanes.values()):
                return
            if now > give_up_at:
                left = sum(len(lane.unanswered) for lane in self._lanes.values())
                self.report.fatal = f"{left} batches still not acknowledged"
                return
            try:
                self._turn(going_on)
            except NOT_THERE as fault:
                self._lost(fault)

    def _turn(self, going_on: bool) -> None:
        client = self._connected()
        ready = [lane for lane in self._lanes.values() if self._has_work(lane, going_on)]
        if ready:
            self._random.shuffle(ready)
            self._send(client, ready[: self._random.randint(1, len(ready))])
            if self.orders.pause_s:
                time.sleep(self.orders.pause_s)
        if self._waiting and (not ready or len(self._waiting) >= 8):
            self._receive(client)
        elif not ready:
            time.sleep(0.005)

    def _connected(self) -> RawClient:
        every = self.orders.switch_every
        if self._client is not None and every and self._requests >= every:
            # Some of the answers, so that it gets on; the rest is never heard.
            for _ in range(self._random.randint(1, len(self._waiting)) if self._waiting else 0):
                self._receive(self._client)
            raise ConnectionError("on to the next worker")
        if self._client is None:
            self._port = (self._port + 1) % len(self.orders.ports)
            self._client = RawClient(self.orders.ports[self._port], timeout=20)
            self._requests = 0
            if self.orders.idempotent and self._producer_id < 0:
                answer = self._client.call(InitProducerIdRequest(transactional_id=None))
                if answer.error_code:
                    raise ConnectionError("no producer id yet")
                self._producer_id = answer.producer_id
        return self._client

    def _lost(self, fault: Exception) -> None:
        self.report.reconnects += 1
        if self._client is not None:
            self._client.close()
        else:
            time.sleep(0.05)  # no worker there
        self._client = None
        self._waiting.clear()
        for lane in self._lanes.values():
            lane.out = 0
            lane.failed = False
            if not self.orders.idempotent:
                lane.unanswered.clear()  # their fate is unknown, and stays so

    # --- sending ---

    def _has_work(self, lane: Lane, going_on: bool) -> bool:
        if lane.failed:
            return False
        if lane.out < len(lane.unanswered):
            return True  # to be sent again
        # As an unknown producer may begin with any sequence, the first goes alone.
        window = 5 if lane.known or not self.orders.idempotent else 1
        return going_on and len(lane.unanswered) < window

    def _send(self, client: RawClient, lanes: Sequence[Lane]) -> None:
        data = []
        for lane in lanes:
            if lane.out == len(lane.unanswered):
                self._add(lane)
            batch = lane.unanswered[lane.out][1]
            lane.out += 1
            data.append(PartitionProduceData(lane.partition, memoryview(batch)))
        self._waiting.append([lane.partition for lane in lanes])
        self._requests += 1
        topics = [TopicProduceData(name=self.orders.topic, partition_data=data)]
        client.send(ProduceRequest(acks=-1, timeout_ms=15_000, topic_data=topics), NAMED_PRODUCE)

    def _add(self, lane: Lane) -> None:
        orders = self.orders
        chance = random.Random(0) if orders.identical else self._random
        count = chance.randint(1, orders.most_records)
        first = lane.next
        lane.next += count
        values = []
        for number in range(first, first + count):
            name = b"same" if orders.identical else b"%b:%d" % (orders.name.encode(), number)
            size = chance.randint(0, orders.most_bytes)
            values.append((None, name + b"|" + b"x" * size, 1_000))
        batch = make_batch(
            values,
            producer_id=self._producer_id if orders.idempotent else -1,
            producer_epoch=0 if orders.idempotent else -1,
            base_sequence=first if orders.idempotent else -1,
        )
        sent = Sent(lane.partition, first, count)
        self.report.sent.append(sent)
        lane.unanswered.append((sent, batch))

    # --- answers ---

    def _receive(self, client: RawClient) -> None:
        response = client.receive()
        partitions = self._waiting.popleft()
        answers = {
            answer.index: answer
            for topic in response.responses
            for answer in topic.partition_responses
        }
        for number in partitions:
            self._answered(self._lanes[number], answers[number])

    def _answered(self, lane: Lane, answer: PartitionProduceResponse) -> None:
        code = ErrorCode(answer.error_code)
        if code is ErrorCode.NONE and not lane.failed:
            sent, _ = lane.unanswered.popleft()
            sent.offset = answer.base_offset
            lane.known = True
            lane.out -= 1
            return
        if code is not ErrorCode.NONE:
            self.report.refusals[code.name] = self.report.refusals.get(code.name, 0) + 1
            if code not in RETRIABLE or (
                code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not lane.failed
            ):
                message = answer.error_message
                self.report.fatal = f"partition {lane.partition}: {code.name}: {message}"
                return
        if not self.orders.idempotent:
            lane.unanswered.popleft()
            lane.out -= 1
            return
        # Those behind it were sent already; once all have answered, all are sent again.
        lane.failed = True
        lane.out -= 1
        if lane.out == 0:
            lane.failed = False
            time.sleep(0.02)


def worker_ports(broker: Broker) -> list[int]:
    """Each worker's own port: it serves its own state, not that of the others."""
    return [entry["port"] for entry in broker.processes("worker")]


def _is_stopped() -> bool:
    readable, _, _ = select.select([sys.stdin], [], [], 0)
    return bool(readable) and not os.read(sys.stdin.fileno(), 1)


class HammerProcess:
    """A hammer in a process of its own."""

    def __init__(self, orders: Orders) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.proofs.hammer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=clean_environment(),
            cwd=ROOT,
        )
        self._input.write(msgspec.json.encode(orders) + b"\n")
        self._input.flush()

    @property
    def _input(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    def stop(self) -> None:
        """Tell it that this is enough; it still waits for answers."""
        self._input.close()

    def report(self) -> Report:
        """What it did, once it has done what it was ordered to."""
        with self._process:
            assert self._process.stdout is not None
            output = self._process.stdout.read()
        assert self._process.returncode == 0, "a hammer failed; see its standard error"
        return msgspec.json.decode(output, type=Report)

    def kill(self) -> None:
        """Kill what still runs, in case the test failed before it asked for the report."""
        if self._process.returncode is None:
            self._process.kill()
            self._process.communicate()


@contextmanager
def hammers(
    orders: Sequence[Orders], ports: Sequence[int], topic: str, partitions: int
) -> Iterator[list[HammerProcess]]:
    """Start them on every partition, through every port; whatever happens, none is left behind."""
    for number, order in enumerate(orders):
        order.seed = number
        order.ports, order.topic, order.partitions = list(ports), topic, list(range(partitions))
    processes = [HammerProcess(order) for order in orders]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()


def main() -> None:
    hammer = Hammer(msgspec.json.decode(sys.stdin.buffer.readline(), type=Orders))
    hammer.run()
    sys.stdout.buffer.write(msgspec.json.encode(hammer.report))


if __name__ == "__main__":
    main()
