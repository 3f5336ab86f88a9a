"""What every client's admin must be able to do with topics and the cluster."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from tests.support.brokers.running import Broker, wait_until
from tests.support.clients.base import (
    GaveUp,
    NewTopic,
    Place,
    Record,
    Refused,
)
from tests.support.compat.session import (
    PROPAGATION_S,
    Session,
    described,
    numbered,
    read,
    send_all,
    values,
    worker_ports,
)
from tests.support.raw.client import RawClient, records_in

UNKNOWN_TOPIC, INVALID_TOPIC, TOPIC_EXISTS = 3, 17, 36
INVALID_PARTITIONS, INVALID_REPLICATION, INVALID_CONFIG = 37, 38, 40
OFFSET_OUT_OF_RANGE, POLICY_VIOLATION = 1, 44


class TopicsTests:
    # --- creating ---

    def test_create(self, kafka: Session) -> None:
        name = kafka.new_name()

        codes = kafka.admin.create_topics([NewTopic(name, 3, {"retention.ms": "3600000"})])

        assert codes == {name: 0}
        kafka.wait_for_topics(name)
        assert set(kafka.admin.leaders(name)) == {0, 1, 2}
        assert kafka.admin.topic_configs(name)["retention.ms"].value == "3600000"

    def test_create_several_of_which_some_are_refused(self, kafka: Session) -> None:
        exists, fine, bad = kafka.topic(), kafka.new_name(), "not a name"

        codes = kafka.admin.create_topics([NewTopic(exists), NewTopic(bad), NewTopic(fine)])

        assert codes == {exists: TOPIC_EXISTS, bad: INVALID_TOPIC, fine: 0}
        kafka.wait_for_topics(fine)

    def test_only_validate(self, kafka: Session) -> None:
        exists, fine = kafka.topic(), kafka.new_name()
        wrong = NewTopic(kafka.new_name(), 1, {"retention.ms": "soon"})

        codes = kafka.admin.create_topics(
            [NewTopic(fine, 4), NewTopic(exists), wrong], validate_only=True
        )

        assert codes == {fine: 0, exists: TOPIC_EXISTS, wrong.name: INVALID_CONFIG}
        assert not {fine, wrong.name} & kafka.admin.topic_names()

    @pytest.mark.parametrize("name", ["a b", "..", ".", "x" * 250, "slash/ed", "žába", "a:b"])
    def test_names_that_are_refused(self, kafka: Session, name: str) -> None:
        assert kafka.admin.create_topics([NewTopic(name)]) == {name: INVALID_TOPIC}

    @pytest.mark.parametrize("name", ["x" * 249, "UPPER.lower_1-2", "0"])
    def test_names_that_are_not(self, kafka: Session, name: str) -> None:
        if len(name) < 249:  # its own, on the shared broker
            name = f"{name}{uuid.uuid4().hex}"
        kafka.admin.delete_topics([name])
        assert kafka.admin.create_topics([NewTopic(name)]) == {name: 0}
        kafka.produce(name, [Record(value=b"v")])
        assert values(kafka.read(name, 1)) == [b"v"]

    @pytest.mark.parametrize(
        ("topic", "code"),
        [
            (NewTopic("", 0), INVALID_PARTITIONS),
            (NewTopic("", 10_001), INVALID_PARTITIONS),
            (NewTopic("", 1, {"no.such.key": "1"}), INVALID_CONFIG),
            (NewTopic("", 1, {"retention.ms": "-2"}), INVALID_CONFIG),
            (NewTopic("", 1, {"cleanup.policy": "shred"}), INVALID_CONFIG),
            (NewTopic("", 1, {"compression.type": "rar"}), INVALID_CONFIG),
            (NewTopic("", 1, {}, 0), INVALID_REPLICATION),
        ],
    )
    def test_topics_that_are_refused(self, kafka: Session, topic: NewTopic, code: int) -> None:
        wanted = NewTopic(kafka.new_name(), topic.partitions, topic.configs, topic.replication)

        assert kafka.admin.create_topics([wanted]) == {wanted.name: code}
        assert wanted.name not in kafka.admin.topic_names()

    # --- deleting ---

    def test_delete(self, kafka: Session) -> None:
        kept, gone, unknown = kafka.topic(), kafka.topic(partitions=3), kafka.new_name()
        kafka.produce(gone, numbered(10))

        assert kafka.admin.delete_topics([gone, unknown]) == {gone: 0, unknown: UNKNOWN_TOPIC}

        wait_until(lambda: gone not in kafka.admin.topic_names(), PROPAGATION_S, "it is gone")
        assert kept in kafka.admin.topic_names()
        assert kafka.admin.delete_topics([gone]) == {gone: UNKNOWN_TOPIC}

    def test_delete_and_create_again_and_again(self, kafka: Session) -> None:
        topic = kafka.topic(partitions=2)
        producer = kafka.producer()
        seen_ids: set[bytes] = set()

        for round_ in range(20):
            sent = [
                Record(value=f"{round_}-{number}".encode(), partition=number % 2)
                for number in range(10)
            ]
            send_all(producer, topic, sent)
            ids = set()
            for port in worker_ports(kafka.broker):
                with RawClient(port) as raw:
                    ids.add(wait_for_another_id(raw, topic, seen_ids))
                    for partition in (0, 1):
                        answer = raw.fetch(topic, 0, partition=partition)
                        assert answer.error_code == 0
                        got = [record.value for record in records_in(answer)]
                        assert got == [r.value for r in sent if r.partition == partition]
                        assert (answer.log_start_offset, answer.high_watermark) == (0, 5)
            assert len(ids) == 1
            seen_ids |= ids
            assert kafka.admin.delete_topics([topic]) == {topic: 0}
            assert kafka.admin.create_topics([NewTopic(topic, 2)]) == {topic: 0}

        for port in worker_ports(kafka.broker):
            with RawClient(port) as raw:
                wait_for_another_id(raw, topic, seen_ids)
                assert raw.fetch(topic, 0).high_watermark == 0

    # --- partitions ---

    def test_more_partitions(self, kafka: Session) -> None:
        topic = kafka.topic(partitions=2)
        kafka.produce(topic, numbered(5, "old", 1))

        assert kafka.admin.create_partitions(topic, 5) == 0

        kafka.wait_for_partitions(topic, 5)
        assert set(kafka.admin.leaders(topic)) == set(range(5))
        kafka.produce(topic, [Record(value=b"%d" % n, partition=n) for n in range(5)])
        got = kafka.read(topic, 10, partitions=5)
        for partition in range(5):
            own = [record.value for record in got if record.partition == partition]
            old = [record.value for record in numbered(5, "old")] if partition == 1 else []
            assert own == [*old, b"%d" % partition]

    def test_partitions_that_are_refused(self, kafka: Session) -> None:
        topic = kafka.topic(partitions=3)

        assert kafka.admin.create_partitions(topic, 3) == INVALID_PARTITIONS
        assert kafka.admin.create_partitions(topic, 2) == INVALID_PARTITIONS
        assert kafka.admin.create_partitions(kafka.new_name(), 2) == UNKNOWN_TOPIC
        assert kafka.admin.create_partitions(topic, 6, validate_only=True) == 0
        assert kafka.admin.create_partitions(topic, 1, validate_only=True) == INVALID_PARTITIONS
        assert len(kafka.admin.leaders(topic)) == 3

    # --- records ---

    def test_delete_records(self, kafka: Session) -> None:
        topic = kafka.topic(partitions=2)
        kafka.produce(topic, numbered(100, partition=1), linger_ms=50)

        assert kafka.admin.delete_records(Place(topic, 1), 42) == 42

        consumer = kafka.consumer()
        assert consumer.watermarks(Place(topic, 1)) == (42, 100)
        assert consumer.watermarks(Place(topic, 0)) == (0, 0)
        consumer.assign({Place(topic, 1): 0})
        assert [record.offset for record in read(consumer, 58)] == list(range(42, 100))
        # Less than what is deleted already changes nothing, the high watermark deletes all.
        assert kafka.admin.delete_records(Place(topic, 1), 7) == 42
        assert kafka.admin.delete_records(Place(topic, 1), -1) == 100
        assert consumer.watermarks(Place(topic, 1)) == (100, 100)
        assert kafka.produce(topic, numbered(1, partition=1))[0].offset == 100

    def test_records_that_cannot_be_deleted(self, kafka: Session) -> None:
        topic = kafka.topic()
        kafka.produce(topic, numbered(10))

        with pytest.raises(Refused) as refusal:
            kafka.admin.delete_records(Place(topic), 11)
        assert refusal.value.code == OFFSET_OUT_OF_RANGE

        compacted = kafka.topic(configs={"cleanup.policy": "compact"})
        with pytest.raises(Refused) as refusal:
            kafka.admin.delete_records(Place(compacted), 0)
        assert refusal.value.code == POLICY_VIOLATION

    # --- the cluster ---

    def test_cluster(self, kafka: Session) -> None:
        cluster = kafka.admin.cluster()

        first, second = worker_ports(kafka.broker)
        assert cluster.brokers == {0: ("127.0.0.1", first), 1: ("127.0.0.1", second)}
        assert cluster.controller in cluster.brokers
        assert cluster.cluster_id

    def test_changes_reach_every_worker(self, kafka: Session) -> None:
        topic = kafka.topic(partitions=2)
        with (
            RawClient(worker_ports(kafka.broker)[0]) as first,
            RawClient(worker_ports(kafka.broker)[1]) as second,
        ):
            workers = (first, second)

            def on_all(condition: Callable[[RawClient], bool], what: str) -> None:
                wait_until(lambda: all(map(condition, workers)), PROPAGATION_S, what)

            on_all(lambda raw: len(described(raw, topic).partitions) == 2, "it is known")
            kafka.admin.create_partitions(topic, 7)
            on_all(lambda raw: len(described(raw, topic).partitions) == 7, "it has grown")
            kafka.admin.delete_topics([topic])
            on_all(lambda raw: described(raw, topic).error_code == UNKNOWN_TOPIC, "it is gone")

    # --- topics that are not there ---

    def test_no_topic_is_created_where_that_is_turned_off(
        self, kafka: Session, start_moldau: Callable[..., Broker]
    ) -> None:
        broker = start_moldau(workers=1, broker={"auto.create.topics.enable": "false"})
        elsewhere = Session(kafka.client, broker)
        topic = elsewhere.new_name()
        try:
            with pytest.raises((Refused, GaveUp)):
                elsewhere.produce(topic, [Record(value=b"v")], patience_ms=1500)
            with pytest.raises(Refused) as refusal:
                elsewhere.admin.leaders(topic)
            assert refusal.value.code == UNKNOWN_TOPIC
            assert elsewhere.admin.topic_names() == set()
            # Asked for by name, it is still created.
            assert elsewhere.admin.create_topics([NewTopic(topic)]) == {topic: 0}
            elsewhere.produce(topic, [Record(value=b"v")])
            assert values(elsewhere.read(topic, 1)) == [b"v"]
        finally:
            elsewhere.close()


def wait_for_another_id(raw: RawClient, topic: str, seen: set[bytes]) -> bytes:
    """Wait until a worker knows the topic that was made again; returns its id."""
    found: list[bytes] = []

    def is_new() -> bool:
        answer = described(raw, topic)
        found[:] = [bytes(answer.topic_id)]
        return answer.error_code == 0 and found[0] not in seen

    wait_until(is_new, PROPAGATION_S, "a worker knows the new topic")
    return found[0]
