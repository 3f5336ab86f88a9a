"""`moldau mirror` from one Moldau to another: the same records at the same offsets."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator
from typing import Any

import pytest
import redis
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from moldau.broker.errors import ErrorCode
from moldau.broker.settings.kafka.topic_keys import MIRROR_ENDED
from moldau.broker.wire.messages.api_versions import ApiVersionsRequest
from moldau.broker.wire.messages.metadata import MetadataResponseTopic
from moldau.broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from moldau.ops.client import ClientError, Cluster, parse_addresses
from moldau.ops.client import TopicPartition as Place
from moldau.ops.client.connection import Connection
from moldau.ops.mirror.cut_over import cut_over as end_mirror
from moldau.ops.mirror.partition import PartitionMirror
from moldau.ops.mirror.topics import CUT_OVER, MIRRORING, TopicMirror, Topics
from tests.integration.mirror.mirroring import (
    PATIENCE_S,
    assert_equal,
    batches,
    bounds,
    cluster_of,
    committed,
    cut_over,
    mirror_once,
    running_mirror,
    words,
)
from tests.support.brokers.compacting import COMPACT, QUICK, produce, wait_compacted
from tests.support.brokers.moldau_cli import Cli
from tests.support.brokers.running import Broker, running_broker, wait_until
from tests.support.raw.calls import (
    StoredLog,
    alter_topic,
    create_topic,
    delete_records,
    delete_topic,
    list_offset,
    read_all,
)
from tests.support.raw.client import RawClient, make_batch
from tests.support.raw.transactions import RawProducer
from tests.support.stores.gaps import fill_with_gap

_names = (f"shop-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def source() -> Iterator[Broker]:
    with running_broker(workers=1, broker={**QUICK, "log.retention.ms": -1}) as broker:
        yield broker


@pytest.fixture(scope="module")
def target() -> Iterator[Broker]:
    with running_broker(workers=2, unsaid=("Traceback", "hole")) as broker:
        yield broker


@pytest.fixture
def here(source: Broker) -> Iterator[RawClient]:
    """The source's worker."""
    with RawClient(source.processes("worker")[0]["port"]) as client:
        yield client


@pytest.fixture
def there(target: Broker) -> Iterator[RawClient]:
    """The target's router."""
    with RawClient(target.port) as client:
        yield client


@pytest.fixture
def name() -> str:
    return next(_names)


def config_of(broker: Broker, topic: str) -> dict[str, str]:
    (described,) = Cli(broker).json("topics", "describe", topic)["topics"]
    return {one["name"]: one["value"] for one in described["configs"]}


def confluent(broker: Broker, topic: str, count: int, **options: Any) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, **options})
    for number in range(count):
        producer.produce(
            topic,
            key=b"%d" % (number % 7),
            value=b"value %d" % number,
            headers=[("number", b"%d" % number)],
            timestamp=1_700_000_000_000 + number,
        )
    assert producer.flush(PATIENCE_S) == 0


# --- what is copied ---


def test_partitions_records_and_configuration(
    source: Broker, target: Broker, here: RawClient, name: str
) -> None:
    create_topic(here, name, {"retention.bytes": 7_000_000_000, "min.insync.replicas": 1}, 3)
    for codec in ("none", "lz4", "zstd"):
        confluent(source, name, 500, **{"compression.type": codec})
    report = mirror_once(source, target, name)
    assert_equal(source, target, name)
    (topic,) = report["topics"]
    assert (topic["records"], topic["lag"], topic["partitions"]) == (1500, 0, 3)
    config = config_of(target, name)
    assert config["retention.bytes"] == "7000000000"
    assert config["retention.ms"] == "-1"  # set for all topics of the source
    # Again: nothing is copied twice.
    assert mirror_once(source, target, name)["records"] == 0
    confluent(source, name, 10)
    assert mirror_once(source, target, name)["records"] == 10
    assert_equal(source, target, name)


def test_a_log_that_begins_above_0_and_one_that_is_empty(
    source: Broker, target: Broker, here: RawClient, there: RawClient, name: str
) -> None:
    emptied = f"{name}-emptied"
    for topic in (name, emptied):
        create_topic(here, topic)
        for number in range(20):
            here.produce(topic, make_batch([(None, b"%d" % number, number)] * 3))
    assert delete_records(here, name, 31).low_watermark == 31  # inside a batch
    assert delete_records(here, emptied, 60).low_watermark == 60
    mirror_once(source, target, f"{name}.*")
    assert bounds(target, name) == [(31, 60)]
    assert bounds(target, emptied) == [(60, 60)]
    assert_equal(source, target, name, emptied)
    assert [record.offset for record in read_all(there, name, 31)] == list(range(31, 60))
    # The log start follows, and records go on.
    delete_records(here, name, 45)
    here.produce(emptied, make_batch([(None, b"first", 1)]))
    mirror_once(source, target, f"{name}.*")
    assert_equal(source, target, name, emptied)
    assert list_offset(there, name, -2).offset == 45


def test_a_compacted_topic_keeps_its_holes(
    source: Broker, target: Broker, here: RawClient, there: RawClient, name: str
) -> None:
    create_topic(here, name, COMPACT)
    for number in range(60):
        end = produce(here, name, *((f"key-{number % 7}", f"{number}-{i}") for i in range(3))) + 3
    with redis.from_url(source.store_url) as store:
        wait_compacted(StoredLog(store, name), end - 3)
    alter_topic(here, name, {"min.cleanable.dirty.ratio": "1"})
    mirror_once(source, target, name)
    found = batches(source, name)
    assert batches(target, name) == found
    assert len(found[0]) < 20
    assert bounds(target, name) == bounds(source, name)
    expected = [(record.offset, record.key, record.value) for record in read_all(here, name)]
    for offset in range(0, end, 7):
        seen = [(one.offset, one.key, one.value) for one in read_all(there, name, offset)]
        assert seen == [one for one in expected if one[0] >= offset]
    # Moldau compacts it on, by the configuration that came with it.
    assert config_of(target, name)["cleanup.policy"] == "compact"


def test_transactions_are_mirrored_as_they_are(
    source: Broker, target: Broker, here: RawClient, there: RawClient, name: str
) -> None:
    create_topic(here, name)
    with RawProducer(source, f"{name}-a") as one, RawProducer(source, f"{name}-b") as other:
        one.begin()
        other.begin()
        for number in range(6):
            one.write(name, b"one %d" % number)
            other.write(name, b"other %d" % number)
            one.finish(commit=number % 2 == 0)
            other.finish(commit=number % 3 == 0)
        one.write(name, b"open")
        mirror_once(source, target, name)
        assert_equal(source, target, name)
        last_stable = list_offset(here, name, -1, isolation_level=1).offset
        assert list_offset(there, name, -1, isolation_level=1).offset == last_stable
        assert last_stable < bounds(source, name)[0][1]
        one.finish(commit=True)
    mirror_once(source, target, name)
    assert_equal(source, target, name)
    end = bounds(source, name)[0][1]
    assert list_offset(there, name, -1, isolation_level=1).offset == end


def consumed(broker: Broker, topic: str, count: int) -> list[tuple[int, bytes]]:
    """So many records from the start, as librdkafka reads them; and that no more are there."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "reader",
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
    )
    found: list[tuple[int, bytes]] = []

    def is_at_end() -> bool:
        message = consumer.poll(1.0)
        if message is None:
            return False
        if (error := message.error()) is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            return len(found) >= count
        found.append((message.offset() or 0, bytes(message.value() or b"")))
        return False

    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        wait_until(is_at_end, PATIENCE_S, f"{count} records of {topic}")
    finally:
        consumer.close()
    return found


def test_a_log_with_nothing_below_its_end(
    source: Broker, target: Broker, here: RawClient, there: RawClient, name: str
) -> None:
    """The source has lost the end of a log and goes on far above it; nothing has come since."""
    create_topic(here, name)
    with redis.from_url(source.store_url) as store:
        fill_with_gap(store, name, after=0)
    wait_until(lambda: bounds(source, name) == [(0, 1000)], PATIENCE_S, "the gap")
    mirror_once(source, target, name)
    assert bounds(target, name) == [(0, 1000)]
    assert [offset for offset, _ in consumed(target, name, 6)] == list(range(6))
    here.produce(name, make_batch([(None, b"after", 1)]))
    mirror_once(source, target, name)
    assert bounds(target, name) == bounds(source, name) == [(0, 1001)]
    found = consumed(target, name, 7)
    assert found == consumed(source, name, 7)
    assert found[-1] == (1000, b"after")
    for offset in (6, 500, 999, 1000):
        assert [record.offset for record in read_all(there, name, offset)] == [1000]


def test_timestamps_are_found(
    source: Broker, target: Broker, here: RawClient, there: RawClient, name: str
) -> None:
    create_topic(here, name)
    confluent(source, name, 300)
    mirror_once(source, target, name)
    for time in (0, 1_700_000_000_000, 1_700_000_000_155, 1_700_000_000_299, 1_800_000_000_000):
        assert list_offset(there, name, time).offset == list_offset(here, name, time).offset
    assert list_offset(there, name, -3) == list_offset(here, name, -3)  # the largest


def test_internal_topics_are_never_mirrored(
    source: Broker, target: Broker, here: RawClient, name: str
) -> None:
    create_topic(here, name)
    report = mirror_once(source, target, f"{name}|__.*")
    assert [topic["topic"] for topic in report["topics"]] == [name]


# --- topics that change, and those that cannot be mirrored ---


def test_a_topic_that_grows_and_is_configured_anew(
    source: Broker, target: Broker, here: RawClient, name: str
) -> None:
    create_topic(here, name, {"retention.bytes": 5_000_000_000, "cleanup.policy": "delete"})
    confluent(source, name, 50)
    mirror_once(source, target, name)
    Cli(source).json("topics", "alter", name, "--partitions", "4")
    alter_topic(here, name, {"retention.bytes": 6_000_000_000})
    confluent(source, name, 50)
    mirror_once(source, target, name)
    assert_equal(source, target, name)
    assert len(bounds(target, name)) == 4
    assert config_of(target, name)["retention.bytes"] == "6000000000"


def test_topics_that_do_not_fit_are_refused_and_the_others_go_on(
    source: Broker, target: Broker, here: RawClient, there: RawClient, name: str
) -> None:
    own, good, empty = (f"{name}-{kind}" for kind in ("own", "good", "empty"))
    for topic in (own, good, empty):
        create_topic(here, topic)
        confluent(source, topic, 20)
    create_topic(there, own)
    confluent(target, own, 3)
    create_topic(there, empty)
    done = Cli(target)(*words(source, f"{name}-.*", "--once"))
    assert done.returncode == 1
    assert f"topic {own} is not mirrored: it exists here with records of its own" in done.stderr
    assert_equal(source, target, good, empty)
    assert bounds(target, own) == [(0, 3)]


def test_a_topic_that_was_made_again_at_the_source(
    source: Broker, target: Broker, here: RawClient, name: str
) -> None:
    create_topic(here, name)
    confluent(source, name, 20)
    mirror_once(source, target, name)
    delete_topic(here, name)
    create_topic(here, name)
    confluent(source, name, 30)
    done = Cli(target)(*words(source, name, "--once"))
    assert done.returncode == 1
    assert "made again at the source" in done.stderr
    assert bounds(target, name) == [(0, 20)]


def test_nothing_to_mirror_and_nobody_to_ask(source: Broker, target: Broker) -> None:
    done = Cli(target)(*words(source, "no-such-topic", "--once"))
    assert (done.returncode, done.stdout) == (1, "no topic of the source matches --topics\n")
    done = Cli(target)("mirror", "--from", "127.0.0.1:1", "--topics", "x", "--once")
    assert done.returncode == 1
    assert "127.0.0.1:1" in done.stderr
    done = Cli(target)("mirror", "--from", source.bootstrap, "--topics", "(")
    assert done.returncode == 2
    assert "is not a regular expression" in done.stderr


# --- clients ---


def test_clients_write_after_the_cut_over_only(
    source: Broker, target: Broker, here: RawClient, there: RawClient, name: str
) -> None:
    create_topic(here, name)
    confluent(source, name, 20)
    mirror_once(source, target, name)
    refused = there.produce(name, make_batch([(None, b"too early", 1)]))
    assert refused.error_code == ErrorCode.POLICY_VIOLATION
    assert "moldau mirror --cut-over" in (refused.error_message or "")
    told: list[Any] = []
    producer = Producer({"bootstrap.servers": target.bootstrap})
    producer.produce(name, b"too early", on_delivery=lambda error, _: told.append(error))
    producer.flush(PATIENCE_S)
    assert [error.code() for error in told] == [KafkaError.POLICY_VIOLATION]
    with RawProducer(target, f"{name}-early") as early:
        early.begin()
        assert early.send(name, b"too early").error_code != 0
        early.end(commit=False)
    assert_equal(source, target, name)
    report = cut_over(source, target, name)
    assert [topic["state"] for topic in report["topics"]] == ["cut over"]
    assert there.produce(name, make_batch([(None, b"first", 1)])).base_offset == 20
    assert "moldau.mirror.source" not in config_of(target, name)
    # It is a topic like any other now: mirroring it again would give its offsets to others.
    done = Cli(target)(*words(source, name, "--once"))
    assert done.returncode == 1
    assert "records of its own" in done.stderr


def read(broker: Broker, group: str, topic: str, count: int) -> list[tuple[int, int]]:
    """So many records of a group's, which are committed then."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.subscribe([topic])
        found: list[tuple[int, int]] = []

        def is_read() -> bool:
            for message in consumer.consume(count - len(found), 1.0):
                assert message.error() is None, message.error()
                found.append((message.partition() or 0, message.offset() or 0))
            return len(found) == count

        wait_until(is_read, PATIENCE_S, f"{count} records of {topic}")
        consumer.commit(asynchronous=False)
        return found
    finally:
        consumer.close()


def test_groups_go_on_where_they_were(
    source: Broker, target: Broker, here: RawClient, name: str
) -> None:
    create_topic(here, name, partitions=2)
    confluent(source, name, 100)
    group, other = f"{name}-group", f"{name}-other"
    for each in (group, other):
        Cli(source).json(
            "groups", "reset-offsets", each, "--topic", name, "--to-earliest", "--execute"
        )
    first = read(source, group, name, 60)
    report = mirror_once(source, target, name, "--groups", f"{name}-gr.*")
    assert [(one["group"], one["waiting"]) for one in report["groups"]] == [(group, 0)]
    assert committed(target, group) == committed(source, group)
    assert committed(target, other) == {}
    # Consumers may be moved before producers; the mirror does not set them back.
    second = read(target, group, name, 30)
    moved = committed(target, group)
    mirror_once(source, target, name, "--groups", f"{name}-gr.*")
    assert committed(target, group) == moved
    cut_over(source, target, name)
    assert committed(target, group) == moved
    assert committed(target, other) == committed(source, other)
    third = read(target, group, name, 10)
    assert sorted(first + second + third) == sorted(set(first + second + third))
    assert len(first + second + third) == 100


# --- the end ---


def test_a_cut_over_waits_until_producers_are_stopped(
    source: Broker, target: Broker, here: RawClient, name: str
) -> None:
    create_topic(here, name)
    confluent(source, name, 20)
    producer = Producer({"bootstrap.servers": source.bootstrap})
    with running_mirror(source, target, name, "--cut-over") as mirror:
        written = 20
        for _ in range(8):
            producer.produce(name, b"still writing")
            assert producer.flush(PATIENCE_S) == 0
            written += 1
            assert mirror.report()["topics"][0]["state"] == "mirroring"
        code, complaints = mirror.ended()
    assert (code, complaints) == (0, "")
    assert bounds(target, name) == [(0, written)]
    assert_equal(source, target, name)


def test_transactions_that_are_open_are_aborted(
    source: Broker, target: Broker, here: RawClient, there: RawClient, name: str
) -> None:
    create_topic(here, name)
    with RawProducer(source, name) as producer:
        producer.begin()
        producer.write(name, b"committed")
        producer.finish(commit=True)
        producer.write(name, b"open")
        end = bounds(source, name)[0][1]
        report = cut_over(source, target, name)
        assert report["aborted_transactions"] == 1
        values = [record.value for record in read_all(there, name, isolation_level=1)]
        assert values[0] == b"committed"
        assert list_offset(there, name, -1, isolation_level=1).offset == end + 1
        assert batches(target, name, 1)[0][: len(batches(source, name, 1)[0])]
        producer.finish(commit=False)


def test_a_cut_over_that_was_interrupted_is_completed(
    source: Broker, target: Broker, here: RawClient, there: RawClient, name: str
) -> None:
    create_topic(here, name)
    with RawProducer(source, name) as producer:
        producer.begin()
        producer.write(name, b"open")
        mirror_once(source, target, name)
        mark = config_of(target, name)["moldau.mirror.source"]
        alter_topic(there, name, {"moldau.mirror.source": mark + MIRROR_ENDED})
        refused = there.produce(name, make_batch([(None, b"too early", 1)]))
        assert refused.error_code == ErrorCode.POLICY_VIOLATION
        assert cut_over(source, target, name)["aborted_transactions"] == 1
        assert there.produce(name, make_batch([(None, b"after", 1)])).error_code == 0
        producer.finish(commit=False)


def test_a_cut_over_that_was_interrupted_before_it_looked_at_the_source(
    source: Broker, target: Broker, here: RawClient, there: RawClient, name: str
) -> None:
    create_topic(here, name)
    confluent(source, name, 20)
    mirror_once(source, target, name)
    mark = config_of(target, name)["moldau.mirror.source"]
    alter_topic(there, name, {"moldau.mirror.source": mark + MIRROR_ENDED})
    confluent(source, name, 5)
    cut_over(source, target, name)
    assert bounds(target, name) == [(0, 25)]
    assert_equal(source, target, name)


def test_a_cut_over_leaves_alone_what_another_one_has_cut_over(
    source: Broker, target: Broker, here: RawClient, there: RawClient, name: str
) -> None:
    create_topic(here, name)
    confluent(source, name, 20)
    mirror_once(source, target, name)
    late = TopicMirror(name, config_of(target, name)["moldau.mirror.source"])
    late.partitions = [PartitionMirror(Place(name, 0))]
    cut_over(source, target, name)
    confluent(target, name, 1)
    with cluster_of(source) as old, cluster_of(target) as new:
        assert end_mirror(old, new, late) == ([], 0)
    assert late.state == CUT_OVER
    confluent(target, name, 1)


class Behind(Cluster):
    """A client that does not know yet, when it first asks, what others have just made."""

    is_behind = True

    def topics(self, names: Collection[str]) -> dict[str, MetadataResponseTopic]:
        if self.is_behind:
            self.is_behind = False
            return {}
        return super().topics(names)


def test_a_topic_that_another_mirror_has_just_made_is_not_refused(
    source: Broker, target: Broker, here: RawClient, name: str
) -> None:
    create_topic(here, name)
    confluent(source, name, 3)
    mirror_once(source, target, name)
    topics = Topics(re.compile(name))
    with cluster_of(source) as old, Behind(parse_addresses(target.bootstrap)) as new:
        with pytest.raises(ClientError, match="exists"):
            topics.sync(old, new, with_configs=True)
        topics.sync(old, new, with_configs=True)
    assert [(one.name, one.state, len(one.partitions)) for one in topics.live] == [
        (name, MIRRORING, 1)
    ]


def test_a_mirror_ends_when_another_one_cuts_over(
    source: Broker, target: Broker, here: RawClient, name: str
) -> None:
    create_topic(here, name)
    confluent(source, name, 20)
    with running_mirror(source, target, name) as mirror:
        mirror.wait("mirrored", lambda report: report["records"] == 20 and report["lag"] == 0)
        cut_over(source, target, name)
        assert mirror.ended() == (0, "")


def test_only_who_may_act_for_the_cluster_mirrors(there: RawClient, name: str) -> None:
    """A Produce that claims to be a mirror's is refused for an ordinary topic."""
    create_topic(there, name)
    batch = make_batch([(None, b"value", 1)])
    answer = there.produce(name, batch, mirrored_at=0)
    assert answer.error_code == ErrorCode.POLICY_VIOLATION
    assert re.search("not a mirror", answer.error_message or "")


def test_a_refusal_without_a_reply_ends_the_connection(
    target: Broker, there: RawClient, name: str
) -> None:
    """Otherwise the router would get a reply that belongs to no request."""
    create_topic(there, name)
    data = PartitionProduceData(0, make_batch([(None, b"value", 1)]))
    unasked = ProduceRequest(None, 0, 1000, [TopicProduceData(name, partition_data=[data])], 0)
    with Connection(("127.0.0.1", target.processes("worker")[0]["port"])) as client:
        client.send(unasked, 9, has_reply=False)
        with pytest.raises(ConnectionError):
            client.call(ApiVersionsRequest(), 0)
