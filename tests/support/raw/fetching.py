"""What tests of Fetch share: a topic seen from three workers, a fetch that waits."""

import os
import threading
import time
from itertools import count
from typing import Any

from moldau.broker.placement import leader_of
from moldau.broker.wire.batch import read_header
from moldau.broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tests.support.raw.calls import create_topic
from tests.support.raw.client import RawClient, batches_in, make_batch

WORKERS = 3
LONG_MS = 60_000  # far longer than anything here takes
_names = (f"fetched-{number}" for number in count())


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


def produce_request(topic: str, batch: bytearray) -> Any:
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(0, memoryview(batch))])
    return ProduceRequest(acks=1, timeout_ms=10_000, topic_data=[data])
