"""The pipeline on a real broker: committed, aborted and open transactions, interleaved."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from moldau.broker.wire.batch import CONTROL, TRANSACTIONAL, read_header
from moldau.ops.client import parse_address
from moldau.ops.pipeline.archive.archiver import Archiver, ArchiveSettings
from moldau.ops.pipeline.lake.compact import Compactor
from moldau.ops.pipeline.lake.schemas import BATCHES, RECORDS, TABLES
from moldau.ops.pipeline.lake.tables import Lake
from moldau.ops.pipeline.replay.replayer import Replayer, ReplayRequest
from moldau.ops.pipeline.report.data import compute
from moldau.ops.pipeline.source.fetch import FetchSettings
from tests.support.brokers.running import Broker
from tests.support.pipeline.lakes import rows_of
from tests.support.pipeline.spark import create_topic
from tests.support.pipeline.topic_rows import rows_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 2
_numbers = itertools.count()


class Transactions:
    """Producers of one topic, a transactional one for each name, and what they committed."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self._bootstrap = broker.bootstrap
        self.topic = topic
        self._producers: dict[str, Producer] = {}
        self.written: dict[str, list[tuple[int, bytes]]] = {}
        self.committed: list[tuple[int, bytes]] = []  # partition and value
        self.aborted: list[tuple[int, bytes]] = []

    def write(self, name: str, count: int = 3) -> None:
        """Write to every partition in the producer's transaction, which begins if there is none."""
        producer = self._producers.get(name)
        if producer is None:
            options: dict[str, Any] = {
                "bootstrap.servers": self._bootstrap,
                "linger.ms": 0,
                "log_level": 0,
            }
            if name:
                options |= {
                    "transactional.id": f"{self.topic}-{name}",
                    "transaction.timeout.ms": 600_000,  # Spark may take its time
                }
            producer = self._producers[name] = Producer(options)
            if name:
                producer.init_transactions(30)
        if name and name not in self.written:
            producer.begin_transaction()
        written = self.written.setdefault(name, [])
        for partition in range(PARTITIONS):
            for _ in range(count):
                value = b"%s-%d" % (name.encode(), next(_numbers))
                producer.produce(self.topic, value, b"key", partition)
                written.append((partition, value))
        assert producer.flush(30) == 0
        if not name:
            self.committed += self.written.pop(name)

    def commit(self, name: str) -> None:
        self._producers[name].commit_transaction(30)
        self.committed += self.written.pop(name)

    def abort(self, name: str) -> None:
        self._producers[name].abort_transaction(30)
        self.aborted += self.written.pop(name)

    def end(self) -> None:
        for name in list(self.written):
            self.abort(name)


@pytest.fixture
def transactions(moldau: Broker) -> Iterator[Transactions]:
    topic = f"transactions-{next(_numbers)}"
    create_topic(moldau.bootstrap, topic, PARTITIONS)
    running = Transactions(moldau, topic)
    yield running
    running.end()


def archive(spark: SparkSession, broker: Broker, lake: Lake, topic: str, **more: Any) -> None:
    settings = ArchiveSettings(broker.bootstrap, (topic,))._replace(**more)
    Archiver(spark, lake, settings).run(continuous=False)


def archived(lake: Lake) -> list[tuple[int, bytes]]:
    rows = rows_of(lake, RECORDS).sort_by([("partition", "ascending"), ("offset", "ascending")])
    return [(row["partition"], row["value"]) for row in rows.to_pylist()]


def batches(lake: Lake) -> list[dict[str, Any]]:
    """Batches in order, checked: they follow one another without gap or overlap."""
    rows = rows_of(lake, BATCHES).sort_by(
        [("partition", "ascending"), ("base_offset", "ascending")]
    )
    ends = dict.fromkeys(range(PARTITIONS), 0)
    found: list[dict[str, Any]] = rows.to_pylist()
    for row in found:
        header = read_header(row["data"])
        assert row["base_offset"] == header.base_offset == ends[row["partition"]]
        assert row["control"] == bool(header.attributes & CONTROL)
        ends[row["partition"]] = header.next_offset
    return found


def by_partition(values: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Values as they are in the log: in each partition in the order of writing."""
    return sorted(values, key=lambda each: (each[0], int(each[1].rpartition(b"-")[2])))


def test_the_lake_has_what_was_committed(
    spark: SparkSession, moldau: Broker, lake: Lake, transactions: Transactions
) -> None:
    topic = transactions.topic
    transactions.write("good")
    transactions.write("bad")
    transactions.write("")
    transactions.write("good")
    transactions.write("bad")
    transactions.abort("bad")
    transactions.write("bad")
    transactions.commit("good")
    transactions.commit("bad")
    transactions.write("slow")
    stable, aborted = list(transactions.committed), len(transactions.aborted)
    transactions.write("")
    transactions.write("bad")
    transactions.abort("bad")
    archive(spark, moldau, lake, topic)
    # What follows the first record of the open transaction waits for its end.
    assert archived(lake) == by_partition(stable)
    before = batches(lake)
    assert {row["aborted"] for row in before if row["control"]} == {False}
    assert sum(row["record_count"] for row in before if row["aborted"]) == aborted
    assert sum(row["control"] for row in before) == 3 * PARTITIONS

    transactions.commit("slow")
    transactions.write("late")
    transactions.abort("late")
    archive(spark, moldau, lake, topic, max_records=20)
    assert archived(lake) == by_partition(transactions.committed)
    after = batches(lake)
    hidden = [read_header(row["data"]) for row in after if row["aborted"]]
    assert sum(header.record_count for header in hidden) == len(transactions.aborted)
    assert all(header.attributes & TRANSACTIONAL for header in hidden)
    # A marker is the last thing in each partition: the lake ends behind it, and nothing is left.
    last = {row["partition"]: row for row in after}
    assert all(row["control"] for row in last.values())
    versions = [lake.open(table).version() for table in TABLES]
    archive(spark, moldau, lake, topic)
    assert [lake.open(table).version() for table in TABLES] == versions


def test_compact_replay_and_report(
    spark: SparkSession, moldau: Broker, lake: Lake, transactions: Transactions
) -> None:
    topic = transactions.topic
    for number in range(4):
        for name in ("one", "two"):
            transactions.write(name)
        transactions.commit("one")
        (transactions.abort if number % 2 else transactions.commit)("two")
        archive(spark, moldau, lake, topic)
    expected = by_partition(transactions.committed)
    Compactor(spark, lake).run()
    assert archived(lake) == expected
    marked = sum(row["record_count"] for row in batches(lake) if row["aborted"])
    assert marked == len(transactions.aborted)

    create_topic(moldau.bootstrap, f"{topic}-again", PARTITIONS)
    settings = FetchSettings((parse_address(moldau.bootstrap),), client_id="tests")
    outcome = Replayer(spark, lake, settings, ReplayRequest(topic, f"{topic}-again")).run()
    assert (outcome.rows, outcome.sent) == (len(expected), len(expected))
    sent = rows_in(moldau, f"{topic}-again")
    assert [(row.partition, row.value) for row in sent] == expected

    # Into a topic in which transactions of others lie between.
    outcome = Replayer(spark, lake, settings, ReplayRequest(topic, topic)).run()
    assert outcome.sent == len(expected)

    report = compute(spark, lake)
    (shown,) = report.topics
    assert sum(one.rows for one in shown.partitions) == len(expected)
    assert not shown.gaps
    assert all(one.without_record > 0 for one in shown.partitions)


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_the_source_by_isolation_level(
    spark: SparkSession,
    moldau: Broker,
    transactions: Transactions,
    tmp_path: Path,
    level: str,
) -> None:
    topic = transactions.topic
    transactions.write("good")
    transactions.write("bad")
    transactions.commit("good")
    transactions.abort("bad")
    transactions.write("slow")
    visible = transactions.committed
    if level == "read_uncommitted":
        visible = visible + transactions.aborted + transactions.written["slow"]

    def read(**options: str) -> list[tuple[int, bytes]]:
        reader = spark.read.format("moldau").option("kafka.bootstrap.servers", moldau.bootstrap)
        options |= {"subscribe": topic, "kafka.isolation.level": level}
        rows = reader.options(**options).load().select("partition", "value").collect()
        return by_partition([(row[0], bytes(row[1])) for row in rows])

    assert read() == by_partition(visible)
    assert read(minPartitions="9") == by_partition(visible)
    # From an aborted batch to a marker.
    edges = {
        at: {topic: {str(p): offset for p in range(PARTITIONS)}}
        for at, offset in (("startingOffsets", 3), ("endingOffsets", 7))
    }
    found = read(**{name: json.dumps(value) for name, value in edges.items()})
    assert len(found) == (0 if level == "read_committed" else 3 * PARTITIONS)
