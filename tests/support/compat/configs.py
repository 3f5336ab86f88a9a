"""What every client's admin must be able to do with configurations."""

from __future__ import annotations

from typing import cast

import pytest

from moldau.broker.settings.kafka import BROKER_KEYS, TOPIC_KEYS
from tests.support.brokers.running import wait_until
from tests.support.clients.base import IncrementalAdmin, Record, Refused
from tests.support.compat.session import PROPAGATION_S, Session

UNKNOWN_TOPIC, MESSAGE_TOO_LARGE, INVALID_CONFIG, INVALID_REQUEST = 3, 10, 40, 42
TOPIC_SOURCE, NODE_SOURCE, CLUSTER_SOURCE, STATIC_SOURCE, DEFAULT_SOURCE = 1, 2, 3, 4, 5


class ConfigsTests:
    def test_every_key_of_a_topic(self, kafka: Session) -> None:
        topic = kafka.topic(configs={"retention.ms": "1000", "cleanup.policy": "compact,delete"})

        found = kafka.admin.topic_configs(topic)

        assert set(found) == set(TOPIC_KEYS)
        assert found["retention.ms"].value == "1000"
        assert found["retention.ms"].source == TOPIC_SOURCE
        assert ("retention.ms", "1000", TOPIC_SOURCE) in found["retention.ms"].synonyms
        assert found["cleanup.policy"].value == "compact,delete"
        assert found["max.message.bytes"].value == "1048588"
        assert found["max.message.bytes"].source == DEFAULT_SOURCE
        assert found["max.message.bytes"].synonyms == [
            ("message.max.bytes", "1048588", DEFAULT_SOURCE)
        ]
        assert not any(entry.read_only or entry.sensitive for entry in found.values())

    @pytest.mark.parametrize("node", ["0", "1"])
    def test_every_key_of_a_broker(self, kafka: Session, node: str) -> None:
        found = kafka.admin.broker_configs(node)

        assert set(found) == set(BROKER_KEYS)
        assert found["node.id"].value == node
        assert found["node.id"].read_only
        assert found["node.id"].source == STATIC_SOURCE
        assert str(kafka.broker.port + 1 + int(node)) in (found["listeners"].value or "")
        assert found["num.partitions"].value == "1"
        assert found["log.retention.ms"].value == "604800000"
        assert not found["log.retention.ms"].read_only

    def test_replace(self, kafka: Session) -> None:
        topic = kafka.topic(configs={"retention.ms": "1000", "segment.ms": "5000"})

        code = kafka.admin.replace_topic_configs(topic, {"retention.bytes": "77"})

        assert code == 0
        found = kafka.admin.topic_configs(topic)
        own = {key: e.value for key, e in found.items() if e.source == TOPIC_SOURCE}
        assert own == {"retention.bytes": "77"}

    def test_replacements_that_are_refused(self, kafka: Session) -> None:
        topic = kafka.topic(configs={"retention.ms": "1000"})

        codes = [
            kafka.admin.replace_topic_configs(topic, {"retention.ms": "soon"}),
            kafka.admin.replace_topic_configs(topic, {"no.such.key": "1"}),
        ]

        assert codes == [INVALID_CONFIG, INVALID_CONFIG]

    def test_a_change_is_in_force_on_every_worker(self, kafka: Session) -> None:
        topic = kafka.topic(partitions=2)  # led by different workers
        records = [Record(value=b"x" * 5000, partition=partition) for partition in (0, 1)]
        kafka.produce(topic, records)

        kafka.admin.replace_topic_configs(topic, {"max.message.bytes": "1000"})

        def is_refused(record: Record) -> bool:
            try:
                kafka.produce(topic, [record])
            except Refused as refusal:
                return refusal.code == MESSAGE_TOO_LARGE
            return False

        for record in records:
            wait_until(lambda record=record: is_refused(record), PROPAGATION_S, "refused")  # type: ignore[misc]


class IncrementalConfigsTests:
    """Tests of clients that have IncrementalAlterConfigs."""

    @staticmethod
    def admin(kafka: Session) -> IncrementalAdmin:
        return cast("IncrementalAdmin", kafka.admin)

    def test_set_and_delete(self, kafka: Session) -> None:
        topic = kafka.topic(configs={"retention.ms": "1000", "segment.ms": "5000"})

        code = self.admin(kafka).change_topic_configs(
            topic, {"retention.ms": ("delete", ""), "retention.bytes": ("set", "99")}
        )

        assert code == 0
        found = kafka.admin.topic_configs(topic)
        own = {key: e.value for key, e in found.items() if e.source == TOPIC_SOURCE}
        assert own == {"retention.bytes": "99", "segment.ms": "5000"}
        assert found["retention.ms"].value == "604800000"

    def test_lists(self, kafka: Session) -> None:
        topic = kafka.topic()
        policies = []

        for operation, value in (
            ("append", "compact"),
            ("subtract", "delete"),
            ("append", "delete"),
        ):
            change = {"cleanup.policy": (operation, value)}
            assert self.admin(kafka).change_topic_configs(topic, change) == 0
            policies.append(kafka.admin.topic_configs(topic)["cleanup.policy"].value)

        assert policies == ["delete,compact", "compact", "compact,delete"]

    @pytest.mark.parametrize(
        ("key", "operation", "value"),
        [
            ("no.such.key", "set", "1"),
            ("retention.ms", "set", "soon"),
            ("retention.ms", "append", "5"),
            ("moldau.storage", "set", "paper"),
        ],
    )
    def test_changes_that_are_refused(
        self, kafka: Session, key: str, operation: str, value: str
    ) -> None:
        topic = kafka.topic()
        change = {key: (operation, value)}

        assert self.admin(kafka).change_topic_configs(topic, change) == INVALID_CONFIG

    def test_a_topic_that_is_not_there(self, kafka: Session) -> None:
        change = {"retention.ms": ("set", "5")}

        code = self.admin(kafka).change_topic_configs(kafka.new_name(), change)

        assert code == UNKNOWN_TOPIC

    def test_one_broker(self, kafka: Session) -> None:
        admin, key = self.admin(kafka), "log.cleaner.backoff.ms"
        try:
            assert admin.change_broker_configs("1", {key: ("set", "14000")}) == 0

            changed = admin.broker_configs("1")[key]
            assert (changed.value, changed.source) == ("14000", NODE_SOURCE)
            assert (key, "15000", DEFAULT_SOURCE) in changed.synonyms
            other = admin.broker_configs("0")[key]
            assert (other.value, other.source) == ("15000", DEFAULT_SOURCE)
        finally:
            assert admin.change_broker_configs("1", {key: ("delete", "")}) == 0
        assert admin.broker_configs("1")[key].source == DEFAULT_SOURCE

    @pytest.mark.parametrize(
        ("key", "value", "refused"),
        [
            ("num.partitions", "5", INVALID_REQUEST),  # read-only
            ("message.max.bytes", "many", INVALID_CONFIG),
            ("nope", "1", INVALID_CONFIG),
        ],
    )
    def test_broker_changes_that_are_refused(
        self, kafka: Session, key: str, value: str, refused: int
    ) -> None:
        code = self.admin(kafka).change_broker_configs("0", {key: ("set", value)})

        assert code == refused
