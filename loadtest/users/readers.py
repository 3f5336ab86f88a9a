"""Users that read without a group: from the end of a partition, and from its start."""

from __future__ import annotations

from moldau.broker.wire.messages.fetch import PartitionData
from moldau.loadtest.users.client.schedule import age_s
from moldau.loadtest.users.client.session import records_of
from moldau.loadtest.users.client.stamped import PartitionCheck
from moldau.loadtest.users.kafka_user import KafkaUser
from moldau.ops.client import EARLIEST, LATEST


class PartitionReader(KafkaUser):
    """Reads one partition from `begin_at` on, and checks every record."""

    abstract = True
    begin_at = EARLIEST
    isolation_level = 0
    check: PartitionCheck | None = None
    partition = 0

    def begin(self) -> PartitionCheck:
        self.partition = self.partitions[self.number % len(self.partitions)]
        offset = self.session.offset(self.topic, self.partition, self.begin_at)
        return PartitionCheck(f"{self.topic}-{self.partition}", offset)

    def feed(self, answer: PartitionData) -> list[str]:
        assert self.check is not None
        return self.check.feed(records_of(answer))

    def read(self, due: float | None, max_wait_ms: int) -> int:
        """Fetch and check what comes next; returns the high watermark."""
        if self.check is None:
            self.check = self.begin()
        answer = self.session.fetch(
            self.topic,
            self.partition,
            self.check.position,
            max_bytes=self.options.fetch_bytes,
            max_wait_ms=max_wait_ms,
            due=due,
            isolation_level=self.isolation_level,
        )
        if answer.error_code:
            position = self.topic, self.partition, self.check.position
            self.report_violations(self.session.out_of_range(*position)[1])
            self.check = None  # begin again
        else:
            self.report_violations(self.feed(answer))
        return answer.high_watermark


class TailReader(PartitionReader):
    """Parked at the end of a partition; reports the age of what arrives as "end to end".

    Its Fetch requests wait for records, so their latency is the time between records.
    """

    weight = 5
    begin_at = LATEST
    max_wait_ms = 500

    def step(self) -> None:
        before = 0 if self.check is None else self.check.records
        self.read(None, self.max_wait_ms)
        if self.check is not None and self.check.records > before and self.check.last is not None:
            self.report("end to end", age_s(self.check.last.due_us), 0, None)


class ColdReader(PartitionReader):
    """Reads one partition after the other from its start to its end."""

    weight = 1

    def step(self) -> None:
        end = self.read(self.schedule.wait(), 0)
        if self.check is not None and self.check.position >= end:
            self.check = None  # continue at the start of the next partition
            self.number += 1
