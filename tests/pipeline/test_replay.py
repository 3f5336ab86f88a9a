"""Replay from a lake: every record, in order and once, whatever is killed."""

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient

from moldau.broker.wire.records import encode_headers
from moldau.ops.client import parse_address
from moldau.ops.client.partitioning import murmur2, partition_of
from moldau.ops.pipeline.errors import PipelineError
from moldau.ops.pipeline.lake.tables import Lake
from moldau.ops.pipeline.replay.producer import Producer, ProducerSettings, SequenceMismatch
from moldau.ops.pipeline.replay.replayer import Replayer, ReplayRequest
from moldau.ops.pipeline.source.fetch import FetchSettings
from tests.support.brokers.running import Broker
from tests.support.pipeline.lake_rows import Row, add_rows, row_of
from tests.support.pipeline.spark import create_topic, produce
from tests.support.pipeline.topic_rows import rows_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def settings_of(broker: Broker, **more: Any) -> FetchSettings:
    return FetchSettings((parse_address(broker.bootstrap),), client_id="tests", **more)


def replay(
    spark: "SparkSession", broker: Broker, lake: Lake, topic: str, target: str, **more: Any
) -> Any:
    return Replayer(spark, lake, settings_of(broker), ReplayRequest(topic, target, **more)).run()


def source_rows(partitions: int, end: int, first: int = 0, partition: int = 0) -> list[Row]:
    """The offsets `first` to `end` of some partitions, from `partition` on."""
    some = range(partition, partition + partitions)
    return [row_of(p, i) for p in some for i in range(first, end)]


def test_everything_is_kept(spark: "SparkSession", moldau: Broker, lake: Lake) -> None:
    add_rows(lake, "a", source_rows(3, 400))
    add_rows(lake, "a", source_rows(3, 700, first=400))
    create_topic(moldau.bootstrap, "replay-kept", 4)
    outcome = replay(spark, moldau, lake, "a", "replay-kept", codec="zstd")
    assert outcome == (2100, 2100, None, 0)
    assert rows_in(moldau, "replay-kept") == source_rows(3, 700)


def test_done_is_done_unless_again_is_given(
    spark: "SparkSession", moldau: Broker, lake: Lake
) -> None:
    add_rows(lake, "a", source_rows(1, 30))
    create_topic(moldau.bootstrap, "replay-done", 1)
    replay(spark, moldau, lake, "a", "replay-done")
    second = replay(spark, moldau, lake, "a", "replay-done")
    assert (second.sent, bool(second.done_before)) == (0, True)
    assert len(rows_in(moldau, "replay-done")) == 30
    replay(spark, moldau, lake, "a", "replay-done", again=True)
    assert len(rows_in(moldau, "replay-done")) == 60


def test_from_an_offset_and_from_a_time(spark: "SparkSession", moldau: Broker, lake: Lake) -> None:
    add_rows(lake, "a", source_rows(2, 50))
    create_topic(moldau.bootstrap, "replay-since", 2)
    replay(spark, moldau, lake, "a", "replay-since", from_offset=40)
    wanted = [row._replace(offset=row.offset - 40) for row in source_rows(2, 50, first=40)]
    assert rows_in(moldau, "replay-since") == wanted
    create_topic(moldau.bootstrap, "replay-later", 2)
    replay(spark, moldau, lake, "a", "replay-later", from_time_ms=row_of(0, 45).timestamp_ms)
    wanted = [row._replace(offset=row.offset - 45) for row in source_rows(2, 50, first=45)]
    assert rows_in(moldau, "replay-later") == wanted


def test_by_key_into_other_partitions(spark: "SparkSession", moldau: Broker, lake: Lake) -> None:
    add_rows(lake, "a", source_rows(3, 200))
    create_topic(moldau.bootstrap, "replay-hash", 5)
    replay(spark, moldau, lake, "a", "replay-hash", mode="hash")
    found = rows_in(moldau, "replay-hash")
    assert len(found) == 600
    for partition in range(3):
        mine = source_rows(3, 200)[partition * 200 : (partition + 1) * 200]
        for target in range(5):
            wanted = [r[2:] for r in mine if partition_of(r.key, r.offset, 5) == target]
            keys = {(key, stamp) for key, _, stamp, _ in wanted if key}
            got = [row[2:] for row in found if row.partition == target]
            # In order; records without a key, of which partitions share the offsets, apart.
            assert [one for one in got if (one[0], one[2]) in keys] == [w for w in wanted if w[0]]


def test_keys_go_where_kafkas_own_producers_send_them() -> None:
    """The values are of the Java client's own test."""
    hashes = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536,
            b"a-little-bit-longer-string": -1486304829, b"abc": 479470107,
            b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971}  # fmt: skip
    assert {key: murmur2(key) for key in hashes} == {
        key: value & 0xFFFFFFFF for key, value in hashes.items()
    }


def test_it_resumes_where_it_stopped_twice(
    spark: "SparkSession", moldau: Broker, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two attempts send some and die; then the lake grows, and others write to the target."""
    add_rows(lake, "a", source_rows(2, 3000))
    create_topic(moldau.bootstrap, "replay-on", 3)
    ends = iter([{0: 2500, 1: 0}, {0: 2500, 1: 700}])

    def send_some(self: Replayer, job: Any, positions: Any, batch_bytes: int) -> int:
        for partition, end in next(ends).items():
            source = job.sources[partition]
            first = positions[partition].get(partition, 0)
            settings = ProducerSettings(
                self._settings, job.target, source.producer_id, source.producer_epoch,
                batch_bytes=9000,
            )  # fmt: skip
            producer = Producer(settings, positions[partition])
            for row in source_rows(1, end, first, partition):
                producer.add(
                    partition, row.timestamp_ms, row.key, row.value, encode_headers(row.headers)
                )
            producer.flush()
            producer.close()
        raise PipelineError("killed")

    monkeypatch.setattr(Replayer, "_send", send_some)
    for _ in range(2):
        with pytest.raises(PipelineError, match=r"^killed$"):
            replay(spark, moldau, lake, "a", "replay-on")
    monkeypatch.undo()
    add_rows(lake, "a", source_rows(2, 3100, first=3000))
    produce(moldau.bootstrap, "replay-on", [(2, 0), (2, 1)])
    outcome = replay(spark, moldau, lake, "a", "replay-on")
    assert outcome == (6000, 6000 - 3200, None, 0)
    found = rows_in(moldau, "replay-on")
    assert [row for row in found if row.partition < 2] == source_rows(2, 3000)


def test_another_process_with_the_same_producer_id_is_noticed(moldau: Broker) -> None:
    create_topic(moldau.bootstrap, "replay-step", 1)
    settings = ProducerSettings(settings_of(moldau), "replay-step", 987_654_321, 0)
    first, second = Producer(settings, {}), Producer(settings, {})
    for producer, count in ((first, 10), (second, 7)):
        for at in range(count):
            producer.add(0, 1, None, b"%d" % at, b"\0")
    first.flush()
    with pytest.raises(SequenceMismatch, match=r"same replay running elsewhere\? Run it again"):
        second.flush()
    first.close()
    second.close()
    assert len(rows_in(moldau, "replay-step")) == 10


def test_a_record_larger_than_the_topic_allows(moldau: Broker) -> None:
    create_topic(moldau.bootstrap, "replay-small", 1, max_message_bytes="120")
    producer = Producer(ProducerSettings(settings_of(moldau), "replay-small", 4712, 0), {})
    producer.add(0, 1, None, b"." * 200, b"\0")
    with pytest.raises(PipelineError, match=r"larger than max.message.bytes of the topic; raise"):
        producer.flush()
    producer.close()


def test_a_producer_outlives_the_workers(start_moldau: Any) -> None:
    """Each worker is killed while it sends: everything arrives, once and in order."""
    broker = start_moldau(workers=2)
    create_topic(broker.bootstrap, "replay-workers", 4)
    settings = ProducerSettings(settings_of(broker), "replay-workers", 4711, 0, batch_bytes=2000)
    producer = Producer(settings, {})
    for at in range(6000):
        if at in (1500, 3000):
            broker.kill("worker", at // 1500 - 1)
        producer.add(at % 4, at, b"%d" % at, None, b"\0")
    producer.flush()
    producer.close()
    found = rows_in(broker, "replay-workers")
    assert [row.timestamp_ms for row in found] == [at for p in range(4) for at in range(p, 6000, 4)]


def test_its_errors(spark: "SparkSession", moldau: Broker, lake: Lake) -> None:
    add_rows(lake, "a", source_rows(3, 10))
    with pytest.raises(PipelineError, match=r"no topic replay-none; .*moldau topics create"):
        replay(spark, moldau, lake, "a", "replay-none")
    create_topic(moldau.bootstrap, "replay-few", 2)
    with pytest.raises(PipelineError, match=r"--partitions 3\), or .*--partitions hash"):
        replay(spark, moldau, lake, "a", "replay-few")
    with pytest.raises(PipelineError, match=r"no such records of topic b; what it has: moldau"):
        replay(spark, moldau, lake, "b", "replay-few")
    create_topic(moldau.bootstrap, "replay-now", 3, message_timestamp_type="LogAppendTime")
    with pytest.raises(PipelineError, match=r"message.timestamp.type=CreateTime"):
        replay(spark, moldau, lake, "a", "replay-now")
    create_topic(moldau.bootstrap, "replay-native", 3, moldau_storage="native")
    with pytest.raises(PipelineError, match=r"moldau.storage=native"):
        replay(spark, moldau, lake, "a", "replay-native")
    add_rows(lake, "a", source_rows(1, 5))
    create_topic(moldau.bootstrap, "replay-twice", 3)
    with pytest.raises(PipelineError, match=r"15 records under 10 offsets.*--from-time"):
        replay(spark, moldau, lake, "a", "replay-twice")


def test_a_target_that_is_created_again_is_another_one(
    spark: "SparkSession", moldau: Broker, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_rows(lake, "a", source_rows(1, 10))
    create_topic(moldau.bootstrap, "replay-new", 1)

    def die(*_: Any) -> int:
        raise PipelineError("killed")

    monkeypatch.setattr(Replayer, "_send", die)
    with pytest.raises(PipelineError, match="killed"):
        replay(spark, moldau, lake, "a", "replay-new")
    monkeypatch.undo()
    admin = AdminClient({"bootstrap.servers": moldau.bootstrap})
    admin.delete_topics(["replay-new"])["replay-new"].result(20)
    create_topic(moldau.bootstrap, "replay-new", 1)
    with pytest.raises(PipelineError, match=r"created again .* start over with --again"):
        replay(spark, moldau, lake, "a", "replay-new")
    replay(spark, moldau, lake, "a", "replay-new", again=True)
    assert len(rows_in(moldau, "replay-new")) == 10
