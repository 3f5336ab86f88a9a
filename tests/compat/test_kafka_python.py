"""kafka-python works unmodified."""

from __future__ import annotations

import pytest

from tests.support.clients.base import EARLIEST, LATEST, MAX_TIMESTAMP, Place, Record, Refused
from tests.support.clients.kafka_python import KafkaPython, KafkaPythonAdmin
from tests.support.compat.configs import ConfigsTests, IncrementalConfigsTests
from tests.support.compat.consuming import ConsumingTests
from tests.support.compat.producing import ProducingTests
from tests.support.compat.session import Session, numbered
from tests.support.compat.topics import UNKNOWN_TOPIC, TopicsTests

SECURITY_DISABLED = 54


@pytest.fixture(scope="module")
def client() -> KafkaPython:
    return KafkaPython()


class TestProducing(ProducingTests):
    pass


class TestConsuming(ConsumingTests):
    pass


class TestTopics(TopicsTests):
    def test_log_dirs(self, kafka: Session) -> None:
        topic = kafka.topic(partitions=4)
        kafka.produce(topic, numbered(100, partition=1))

        sizes = _admin(kafka).log_dirs(topic)

        # Every broker answers for what it leads, so that a sum over them is right.
        leaders = kafka.admin.leaders(topic)
        assert {partition: node for node, found in sizes.items() for partition in found} == leaders
        stored = sum(batch.size for batch in kafka.stored(topic, 1))
        assert sizes[leaders[1]][1] == stored > 100 * len(b"record-000000")
        assert sizes[leaders[0]][0] == 0

    def test_topic_partitions_page_by_page(self, kafka: Session) -> None:
        first, second = sorted([kafka.topic(partitions=5), kafka.topic(partitions=3)])
        unknown = "zzz-" + kafka.new_name()
        sizes = {name: len(kafka.admin.leaders(name)) for name in (first, second)}
        seen: dict[str, list[int]] = {}
        cursor = None

        for _ in range(20):
            page, cursor = _admin(kafka).topic_partitions([first, second, unknown], 2, cursor)
            for name, topic in page.items():
                assert topic["error_code"] == (UNKNOWN_TOPIC if name == unknown else 0)
                indexes = [item["partition_index"] for item in topic["partitions"]]
                seen[name] = seen.get(name, []) + indexes
            assert sum(len(topic["partitions"]) for topic in page.values()) <= 2
            if cursor is None:
                break

        assert cursor is None
        assert seen == {
            first: list(range(sizes[first])),
            second: list(range(sizes[second])),
            unknown: [],
        }

    def test_list_offsets(self, kafka: Session) -> None:
        topic = kafka.topic(partitions=2)
        times = [1_700_000_000_000, 1_700_000_005_000, 1_700_000_002_000]
        kafka.produce(topic, [Record(value=b"v", partition=1, timestamp=at) for at in times])
        admin, place = _admin(kafka), Place(topic, 1)

        assert admin.list_offset(place, EARLIEST)[0] == 0
        assert admin.list_offset(place, LATEST)[0] == 3
        assert admin.list_offset(place, MAX_TIMESTAMP) == (1, times[1])
        assert admin.list_offset(place, times[0] + 1) == (1, times[1])
        assert admin.list_offset(Place(topic, 0), MAX_TIMESTAMP) == (-1, -1)

    def test_there_are_no_access_rules(self, kafka: Session) -> None:
        with pytest.raises(Refused) as refusal:
            _admin(kafka).describe_acls()

        assert refusal.value.code == SECURITY_DISABLED


class TestConfigs(ConfigsTests, IncrementalConfigsTests):
    pass


def _admin(kafka: Session) -> KafkaPythonAdmin:
    assert isinstance(kafka.admin, KafkaPythonAdmin)
    return kafka.admin
