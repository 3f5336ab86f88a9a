"""The pipeline across a gap: what the store lost is neither waited for nor taken for data loss."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import redis

from moldau.broker.store import keys
from moldau.broker.store.topics import Change
from moldau.ops.client import TopicPartition, parse_address
from moldau.ops.pipeline.archive.archiver import Archiver, ArchiveSettings
from moldau.ops.pipeline.errors import PipelineError
from moldau.ops.pipeline.lake.schemas import BATCHES, RECORDS
from moldau.ops.pipeline.lake.tables import Lake
from moldau.ops.pipeline.replay.replayer import Replayer, ReplayRequest
from moldau.ops.pipeline.source.fetch import FetchSettings, OffsetRange, RangeReader, connect
from tests.support.brokers.running import Broker, wait_until
from tests.support.pipeline.lake_rows import add_rows, row_of
from tests.support.pipeline.lakes import rows_of
from tests.support.pipeline.spark import create_topic, produce
from tests.support.stores.gaps import add_record, fill_with_gap, lose_and_go_on

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXISTING = [*range(6), *range(1000, 1004)]
_names = (f"pipeline-gap-{number}" for number in itertools.count())


@pytest.fixture
def store(moldau: Broker) -> Iterator[Any]:
    with redis.from_url(moldau.store_url) as made:
        yield made


def new_topic(broker: Broker) -> str:
    name = next(_names)
    create_topic(broker.bootstrap, name, 1)
    return name


def settings_of(broker: Broker, **more: Any) -> FetchSettings:
    return FetchSettings((parse_address(broker.bootstrap),), max_wait_ms=50, **more)


def offsets_in(settings: FetchSettings, topic: str, start: int, end: int) -> list[int]:
    reader = RangeReader(settings)
    try:
        return [
            one.header.base_offset
            for batches in reader.read(OffsetRange(TopicPartition(topic, 0), start, end))
            for one in batches
        ]
    finally:
        reader.close()


def archived(lake: Lake, table: str, column: str) -> list[int]:
    offsets: list[int] = sorted(rows_of(lake, table, [column])[column].to_pylist())
    return offsets


def archive(spark: SparkSession, broker: Broker, lake: Lake, topic: str, **more: Any) -> None:
    settings = ArchiveSettings(broker.bootstrap, (topic,))._replace(**more)
    Archiver(spark, lake, settings).run(continuous=False)


def test_any_range_around_a_gap(moldau: Broker, store: Any) -> None:
    topic = new_topic(moldau)
    fill_with_gap(store, topic)
    settings = settings_of(moldau)
    edges = (0, 4, 6, 7, 500, 999, 1000, 1002, 1004)
    for start, end in itertools.combinations(edges, 2):
        expected = [at for at in EXISTING if start <= at < end]
        assert offsets_in(settings, topic, start, end) == expected


def test_a_range_that_ends_in_a_gap_with_nothing_after_it(moldau: Broker, store: Any) -> None:
    topic = new_topic(moldau)
    fill_with_gap(store, topic, after=0)
    settings = settings_of(moldau)
    for start, end in ((0, 1000), (3, 500), (6, 1000), (7, 800), (999, 1000)):
        expected = [at for at in range(6) if start <= at < end]
        assert offsets_in(settings, topic, start, end) == expected


def test_records_that_another_client_removed_are_still_an_error(moldau: Broker, store: Any) -> None:
    topic = new_topic(moldau)
    key = keys.stream(topic, 0, 0)
    for offset in range(3):
        add_record(store, key, offset)
    assert offsets_in(settings_of(moldau), topic, 0, 3) == [0, 1, 2]
    store.xdel(key, "1-1", "2-1")
    with pytest.raises(PipelineError, match="without records"):
        offsets_in(settings_of(moldau, patience_s=2), topic, 1, 3)


@pytest.mark.parametrize("max_records", [4, 1_000_000])
def test_archiving(
    spark: SparkSession, moldau: Broker, store: Any, lake: Lake, max_records: int
) -> None:
    topic = new_topic(moldau)
    fill_with_gap(store, topic, start=30)
    archive(spark, moldau, lake, topic, max_records=max_records)
    expected = [*range(6), *range(30, 34)]
    assert archived(lake, RECORDS, "offset") == expected
    assert archived(lake, BATCHES, "base_offset") == expected
    produce(moldau.bootstrap, topic, [(0, i) for i in range(3)])
    archive(spark, moldau, lake, topic)
    assert archived(lake, RECORDS, "offset") == [*expected, 34, 35, 36]


def test_archiving_up_to_a_gap_then_beyond_it(
    spark: SparkSession, moldau: Broker, store: Any, lake: Lake
) -> None:
    topic = new_topic(moldau)
    fill_with_gap(store, topic, after=0)
    archive(spark, moldau, lake, topic)
    assert archived(lake, RECORDS, "offset") == [*range(6)]
    archive(spark, moldau, lake, topic)
    produce(moldau.bootstrap, topic, [(0, i) for i in range(3)])
    archive(spark, moldau, lake, topic)
    assert archived(lake, RECORDS, "offset") == [*range(6), 1000, 1001, 1002]


def test_the_source_as_a_stream_and_in_batch(
    spark: SparkSession, moldau: Broker, store: Any, tmp_path: Any
) -> None:
    topic = new_topic(moldau)
    fill_with_gap(store, topic, start=40)
    options = {"kafka.bootstrap.servers": moldau.bootstrap, "subscribe": topic}
    frame = spark.read.format("moldau").options(**options, minPartitions="4").load()
    expected = [*range(6), *range(40, 44)]
    assert sorted(row.offset for row in frame.select("offset").collect()) == expected
    stream = (
        spark.readStream.format("moldau")
        .options(**options, startingOffsets="earliest", maxOffsetsPerTrigger="5")
        .load()
        .select("offset")
        .writeStream.format("json")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    stream.awaitTermination(120)
    found = spark.read.schema("offset bigint").json(str(tmp_path / "out")).collect()
    assert sorted(row.offset for row in found) == expected


def test_replaying_a_topic_with_a_gap(
    spark: SparkSession, moldau: Broker, store: Any, lake: Lake
) -> None:
    topic, target = new_topic(moldau), new_topic(moldau)
    fill_with_gap(store, topic, start=3_000_000)
    archive(spark, moldau, lake, topic, max_records=100_000_000)
    request = ReplayRequest(topic, target)
    outcome = Replayer(spark, lake, settings_of(moldau), request).run()
    assert outcome.sent == len(EXISTING)
    assert offsets_in(settings_of(moldau), target, 0, len(EXISTING))[0] == 0


def test_resuming_a_replay_into_a_topic_with_a_gap(
    spark: SparkSession, moldau: Broker, store: Any, lake: Lake
) -> None:
    """Its position is read from the target, across the gap and up to its end."""
    rows = [row_of(0, i) for i in range(20)]
    add_rows(lake, "source", rows)
    target = new_topic(moldau)
    fill_with_gap(store, target, after=0)
    request = ReplayRequest("source", target)
    assert Replayer(spark, lake, settings_of(moldau), request).run().sent == 20
    again = request._replace(again=True)
    assert Replayer(spark, lake, settings_of(moldau), again).run().sent == 20
    found = offsets_in(settings_of(moldau), target, 0, 1040)
    assert found[:7] == [*range(6), 1000]


@pytest.mark.parametrize("lost_from", [0, 12])
def test_a_replay_whose_target_lost_records_says_so(
    spark: SparkSession,
    moldau: Broker,
    store: Any,
    lake: Lake,
    monkeypatch: pytest.MonkeyPatch,
    lost_from: int,
) -> None:
    """They were acknowledged, so they are not sent again: the replay must not be taken for done."""
    add_rows(lake, "source", [row_of(0, i) for i in range(20)])
    target = new_topic(moldau)
    log = keys.stream(target, 0, 0)

    def send(self: Replayer, job: Any, positions: Any, batch_bytes: int) -> int:
        """Send as a producer does that goes on after the loss of some of its batches."""
        producer_id = job.sources[0].producer_id
        for sequence in range(20):
            if sequence == 15:
                lose_and_go_on(store, log, lost_from, 1000)
                store.hset(keys.EPOCHS, log, 1)
            offset = sequence + (1000 - 15 if sequence >= 15 else 0)
            add_record(store, log, offset, producer_id=producer_id, sequence=sequence)
        change = msgspec.msgpack.encode(Change("epoch", target, 0))
        store.xadd(keys.CHANGES, {"c": change})
        wait_until(lambda: _epoch(moldau, target) == 1, 30, "the epoch is announced")
        return 20

    monkeypatch.setattr(Replayer, "_send", send)
    replayer = Replayer(spark, lake, settings_of(moldau), ReplayRequest("source", target))
    with pytest.raises(PipelineError, match=f"{15 - lost_from} of 20 records were sent and are no"):
        replayer.run()


def _epoch(broker: Broker, topic: str) -> int:
    with connect(settings_of(broker)) as cluster:
        return cluster.topics([topic])[topic].partitions[0].leader_epoch
