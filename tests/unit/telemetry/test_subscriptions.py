"""Which clients are asked for which metrics, and the id of what they are asked for."""

from __future__ import annotations

import pytest

from moldau.broker.settings.kafka import (
    CLIENT_METRICS_KEYS,
    ConfigOperation,
    InvalidConfig,
    InvalidConfigRequest,
    apply_incremental,
    describe_client_metrics,
)
from moldau.broker.telemetry.subscriptions import (
    DEFAULT,
    Client,
    Subscription,
    Wanted,
    read_subscription,
    wanted,
)

JAVA = Client("billing-1", "10.0.0.7", 4711, "apache-kafka-java", "4.3.0")
UNKNOWN = Client("x", "10.0.0.8", 1, "", "")
ID = bytes(range(7, 23, 2)) + bytes(8)


def asked(client: Client, *configs: dict[str, str]) -> Wanted:
    return wanted([read_subscription(each) for each in configs], client, "AAEC")


def test_a_client_gets_the_union_of_what_matches_it_at_the_shortest_interval() -> None:
    found = asked(
        JAVA,
        {"metrics": "b.,a.", "interval.ms": "5000", "match": "client_id=billing-.*"},
        {"metrics": "c.", "interval.ms": "2000", "match": "client_id=other"},
        {"metrics": "a., d.", "interval.ms": "9000"},
    )
    assert found == Wanted(("a.", "b.", "d."), 5000)


def test_all_metrics_are_asked_for_by_a_star_alone() -> None:
    assert asked(JAVA, {"metrics": "a"}, {"metrics": "*"}).metrics == ("*",)


@pytest.mark.parametrize(
    ("match", "is_java"),
    [
        ("client_software_name=apache-kafka-java, client_software_version=4.3.*", True),
        ("client_software_version=4.3", False),  # wholly
        ("client_software_name=unknown", False),
        ("client_source_address=10\\.0\\.0\\.[0-9],client_source_port=4711", True),
        ("client_instance_id=AAEC", True),
        ("client_id=billing-1,client_source_port=1", False),  # all of them
    ],
)
def test_clients_are_matched_by_what_is_known_of_them(match: str, is_java: bool) -> None:
    configs = {"metrics": "a", "match": match}
    assert (asked(JAVA, configs).metrics == ("a",)) == is_java


def test_a_client_that_does_not_say_what_it_is_is_unknown() -> None:
    configs = {"metrics": "a", "match": "client_software_name=unknown"}
    assert asked(UNKNOWN, configs).metrics == ("a",)


def test_nothing_is_asked_of_a_client_that_matches_nothing() -> None:
    assert asked(JAVA, {"metrics": "a", "match": "client_id=z"}) == Wanted((), 300_000)


def test_the_id_depends_on_what_is_asked_for_and_on_the_client_and_on_nothing_else() -> None:
    one = Wanted(("a", "b"), 1000)
    assert one.subscription_id(ID) == Wanted(("a", "b"), 1000).subscription_id(ID)
    others = {
        Wanted(("a", "b"), 2000).subscription_id(ID),
        Wanted(("a",), 1000).subscription_id(ID),
        one.subscription_id(bytes(16)),
    }
    assert one.subscription_id(ID) not in others
    assert all(-(1 << 31) <= each < 1 << 31 for each in {one.subscription_id(ID), *others})


def test_the_default_asks_for_what_kip_714_makes_all_clients_have() -> None:
    found = wanted([DEFAULT], JAVA, "AAEC")
    assert found.interval_ms == 60_000
    for name in ("consumer.poll.idle.ratio.avg", "producer.record.queue.time.avg"):
        assert f"org.apache.kafka.{name}".startswith(found.metrics)


@pytest.mark.parametrize(
    ("configs", "error"),
    [
        ({"interval.ms": "99"}, InvalidConfigRequest),
        ({"interval.ms": "3600001"}, InvalidConfigRequest),
        ({"nope": "1"}, InvalidConfigRequest),
        ({"interval.ms": "soon"}, InvalidConfig),
        ({"match": "client_id"}, InvalidConfig),
        ({"match": "client_id=a=b"}, InvalidConfig),
        ({"match": "client_colour=red"}, InvalidConfig),
        ({"match": "client_id=("}, InvalidConfig),
    ],
)
def test_what_kafka_refuses_is_refused(configs: dict[str, str], error: type[InvalidConfig]) -> None:
    with pytest.raises(InvalidConfig) as caught:
        read_subscription(configs)
    assert type(caught.value) is error


def test_defaults_and_sources_are_described() -> None:
    entries = {each.name: each for each in describe_client_metrics({"metrics": "a , b"})}
    assert {name: each.value for name, each in entries.items()} == {
        "interval.ms": "300000",
        "match": "",
        "metrics": "a,b",
    }
    assert entries["metrics"].source.name == "DYNAMIC_CLIENT_METRICS_CONFIG"
    assert entries["match"].source.name == "DEFAULT_CONFIG"
    assert read_subscription({}) == Subscription(frozenset(), 300_000)
    assert [each.name for each in describe_client_metrics({}, ["match"])] == ["match"]


def test_a_list_that_is_not_set_can_be_appended_to() -> None:
    operations = [("metrics", ConfigOperation.APPEND, "a.")]
    assert apply_incremental({}, operations, keys=CLIENT_METRICS_KEYS) == {"metrics": "a."}
