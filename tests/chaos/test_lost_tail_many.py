"""How long it takes 1,000 partitions to be served again once their store is back.

Printed and reported, not asserted: it depends on the machine.

    ops/test -m slow -s tests/chaos/test_lost_tail_many.py
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from moldau.broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tests.support.brokers.running import Broker
from tests.support.proofs.hammer import worker_ports
from tests.support.proofs.observer import NOT_THERE, PATIENCE_S
from tests.support.raw.calls import create_topic
from tests.support.raw.client import NAMED_PRODUCE, RawClient, make_batch
from tests.support.stores.lossy import programs
from tests.support.stores.stages import STAGES

Start = Callable[..., Broker]
TOPIC, PARTITIONS = "many", 1_000
AT_ONCE = 20


class Appender(threading.Thread):
    """Appends to its partitions through one worker until each has taken a record."""

    def __init__(self, port: int, partitions: list[int]) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._left = partitions
        self.answered_at: list[float] = []
        self.start()

    def run(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self._left and time.monotonic() < deadline:
            try:
                with RawClient(self._port) as client:
                    while self._left:
                        self._append(client, self._left[:AT_ONCE])
            except NOT_THERE:
                time.sleep(0.005)

    def _append(self, client: RawClient, partitions: list[int]) -> None:
        batch = make_batch([(None, b"value", 1_000)])
        data = [PartitionProduceData(number, memoryview(batch)) for number in partitions]
        topics = [TopicProduceData(name=TOPIC, partition_data=data)]
        answer = client.call(ProduceRequest(None, -1, 10_000, topics), NAMED_PRODUCE)
        done = {
            item.index for item in answer.responses[0].partition_responses if not item.error_code
        }
        self.answered_at += [time.monotonic()] * len(done)
        self._left = [number for number in self._left if number not in done]
        if len(done) < len(partitions):
            time.sleep(0.005)


def append_everywhere(ports: list[int], began: float) -> tuple[float, float]:
    """Seconds from `began` until the first partition and until every one has taken a record."""
    shares = [list(range(index, PARTITIONS, len(ports))) for index in range(len(ports))]
    appenders = [Appender(port, share) for port, share in zip(ports, shares, strict=True)]
    for appender in appenders:
        appender.join(2 * PATIENCE_S)
    times = [at for appender in appenders for at in appender.answered_at]
    assert len(times) == PARTITIONS
    return min(times) - began, max(times) - began


@pytest.mark.slow
@pytest.mark.parametrize("name", ["killed", "cut", "planned"])
def test_the_time_until_1000_partitions_take_records_again(
    tmp_path: Path,
    start_moldau: Start,
    name: str,
    record_property: Callable[[str, object], None],
) -> None:
    with STAGES[name](tmp_path, programs()["valkey"]) as stage:
        broker = start_moldau(redis=stage.url, workers=2)
        ports = worker_ports(broker)
        with RawClient(ports[0], timeout=60) as client:
            create_topic(client, TOPIC, partitions=PARTITIONS)
        append_everywhere(ports, 0)
        _, usual = append_everywhere(ports, time.monotonic())
        stage.prepare()
        append_everywhere(ports, 0)
        stage.strike()  # ends when the store answers, or has its new role
        first, last = append_everywhere(ports, time.monotonic())
        print(
            f"{name}: store back to first append {first:.2f} s, to all {PARTITIONS} {last:.2f} s "
            f"(usually {usual:.2f} s)"
        )
        record_property("seconds_to_first_append", round(first, 2))
        record_property("seconds_to_all", round(last, 2))
