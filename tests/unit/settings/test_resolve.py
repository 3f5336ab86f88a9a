"""Which value is in force, its source, and its entry in DescribeConfigs."""

import pytest

from moldau.broker.settings.kafka import (
    BROKER_KEYS,
    TOPIC_KEYS,
    BrokerConfig,
    ConfigEntry,
    ConfigKey,
    ConfigSource,
    ConfigSynonym,
    ConfigType,
    describe_broker,
    describe_topic,
)
from moldau.broker.settings.kafka.resolve import _entry

TOPIC = ConfigSource.DYNAMIC_TOPIC_CONFIG
BROKER = ConfigSource.DYNAMIC_BROKER_CONFIG
CLUSTER = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
STATIC = ConfigSource.STATIC_BROKER_CONFIG
DEFAULT = ConfigSource.DEFAULT_CONFIG


def topic_entry(name: str, overrides: dict[str, str], broker: BrokerConfig) -> ConfigEntry:
    [entry] = describe_topic(overrides, broker, [name])
    return entry


def broker_entry(name: str, broker: BrokerConfig) -> ConfigEntry:
    [entry] = describe_broker(broker, [name])
    return entry


def test_a_nearer_source_wins_and_the_others_are_listed() -> None:
    everywhere = BrokerConfig(
        static={"message.max.bytes": "3"},
        dynamic_default={"message.max.bytes": "2"},
        dynamic_broker={"message.max.bytes": "1"},
    )
    chain = (
        ConfigSynonym("message.max.bytes", "1", BROKER),
        ConfigSynonym("message.max.bytes", "2", CLUSTER),
        ConfigSynonym("message.max.bytes", "3", STATIC),
        ConfigSynonym("message.max.bytes", "1048588", DEFAULT),
    )
    assert everywhere.resolve("message.max.bytes") == ("1", BROKER, chain)

    entry = topic_entry("max.message.bytes", {"max.message.bytes": "0"}, everywhere)
    assert (entry.value, entry.source) == ("0", TOPIC)
    assert entry.synonyms == (ConfigSynonym("max.message.bytes", "0", TOPIC), *chain)

    entry = topic_entry("max.message.bytes", {}, everywhere)
    assert (entry.value, entry.source, entry.synonyms) == ("1", BROKER, chain)


@pytest.mark.parametrize(
    ("broker", "value", "source"),
    [
        (BrokerConfig(dynamic_broker={"num.partitions": "4"}), "4", BROKER),
        (BrokerConfig(dynamic_default={"num.partitions": "4"}), "4", CLUSTER),
        (BrokerConfig({"num.partitions": "4"}), "4", STATIC),
        (BrokerConfig(), "1", DEFAULT),
    ],
)
def test_each_source_alone(broker: BrokerConfig, value: str, source: ConfigSource) -> None:
    assert broker.get("num.partitions") == value
    assert broker.get_int("num.partitions") == int(value)
    entry = broker_entry("num.partitions", broker)
    assert (entry.value, entry.source) == (value, source)


def test_retention_by_hours_and_minutes_counts_in_milliseconds() -> None:
    assert BrokerConfig().get("log.retention.ms") == "604800000"
    hours = BrokerConfig({"log.retention.hours": "2"})
    assert hours.resolve("log.retention.ms")[:2] == ("7200000", STATIC)
    minutes = BrokerConfig({"log.retention.hours": "2", "log.retention.minutes": "3"})
    assert minutes.get("log.retention.ms") == "180000"
    both = BrokerConfig({"log.retention.minutes": "3", "log.retention.ms": "77"})
    assert both.get("log.retention.ms") == "77"
    assert both.get("log.retention.minutes") == "3"

    entry = topic_entry("retention.ms", {}, hours)
    assert (entry.value, entry.source) == ("7200000", STATIC)
    assert entry.synonyms == (
        ConfigSynonym("log.retention.hours", "2", STATIC),
        ConfigSynonym("log.retention.hours", "168", DEFAULT),
    )


def test_a_source_wins_with_any_of_its_units() -> None:
    changed = BrokerConfig(
        static={"log.retention.ms": "77"}, dynamic_default={"log.retention.hours": "1"}
    )
    assert changed.get("log.retention.ms") == "3600000"


def test_no_limit_is_no_limit_in_every_unit() -> None:
    for name in ("log.retention.hours", "log.retention.minutes", "log.retention.ms"):
        assert BrokerConfig({name: "-1"}).get("log.retention.ms") == "-1"


def test_other_keys_with_stand_ins() -> None:
    assert BrokerConfig({"log.roll.hours": "1"}).get("log.roll.ms") == "3600000"
    assert BrokerConfig({"log.roll.jitter.hours": "1"}).get("log.roll.jitter.ms") == "3600000"
    flush = BrokerConfig({"log.flush.scheduler.interval.ms": "5"})
    assert flush.get("log.flush.interval.ms") == "5"
    listening = BrokerConfig({"listeners": "PLAINTEXT://:1"})
    assert listening.get("advertised.listeners") == "PLAINTEXT://:1"


def test_a_key_without_any_value() -> None:
    assert BrokerConfig().get("broker.rack") == ""
    entry = broker_entry("broker.rack", BrokerConfig())
    assert (entry.value, entry.source, entry.synonyms) == (None, DEFAULT, ())


def test_a_name_that_is_no_key_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(KeyError):
        BrokerConfig().get("num.partition")


def test_a_topic_key_without_a_broker_key() -> None:
    entry = topic_entry("moldau.storage", {}, BrokerConfig())
    assert (entry.value, entry.source, entry.synonyms) == ("log", DEFAULT, ())
    entry = topic_entry("remote.storage.enable", {"remote.storage.enable": "true"}, BrokerConfig())
    assert (entry.value, entry.source) == ("true", TOPIC)
    assert entry.synonyms == (ConfigSynonym("remote.storage.enable", "true", TOPIC),)


def test_values_are_printed_as_kafka_does() -> None:
    overrides = {"cleanup.policy": " compact , delete ", "min.cleanable.dirty.ratio": "1"}
    assert topic_entry("cleanup.policy", overrides, BrokerConfig()).value == "compact,delete"
    assert topic_entry("min.cleanable.dirty.ratio", overrides, BrokerConfig()).value == "1.0"


@pytest.mark.parametrize("names", [None, []])
def test_no_names_are_all_names(names: list[str] | None) -> None:
    described = describe_topic({}, BrokerConfig(), names)
    assert [entry.name for entry in described] == list(TOPIC_KEYS)
    described = describe_broker(BrokerConfig(), names)
    assert [entry.name for entry in described] == list(BROKER_KEYS)


def test_only_known_names_are_answered() -> None:
    described = describe_topic({}, BrokerConfig(), ["retention.ms", "no.such.key"])
    assert [entry.name for entry in described] == ["retention.ms"]
    described = describe_broker(BrokerConfig(), ["no.such.key", "num.partitions"])
    assert [entry.name for entry in described] == ["num.partitions"]


def test_an_entry_has_all_that_the_response_needs() -> None:
    assert broker_entry("num.partitions", BrokerConfig()) == ConfigEntry(
        name="num.partitions",
        value="1",
        read_only=True,
        source=DEFAULT,
        sensitive=False,
        synonyms=(ConfigSynonym("num.partitions", "1", DEFAULT),),
        type=ConfigType.INT,
        documentation=BROKER_KEYS["num.partitions"].documentation,
    )
    assert not broker_entry("log.retention.ms", BrokerConfig()).read_only
    assert not any(entry.read_only for entry in describe_topic({}, BrokerConfig()))


def test_the_cluster_resource_shows_only_what_was_changed_for_the_cluster() -> None:
    changed = BrokerConfig(
        static={"num.partitions": "4"},
        dynamic_default={"log.cleanup.policy": " compact ", "log.retention.ms": "5"},
        dynamic_broker={"message.max.bytes": "1", "log.retention.ms": "6"},
    )
    policy, retention = describe_broker(changed, cluster_default=True)
    assert (policy.name, policy.value, policy.source) == ("log.cleanup.policy", "compact", CLUSTER)
    assert (retention.name, retention.value) == ("log.retention.ms", "5")
    assert retention.synonyms == (ConfigSynonym("log.retention.ms", "5", CLUSTER),)
    assert describe_broker(BrokerConfig(), cluster_default=True) == []
    assert describe_broker(changed, ["num.partitions"], cluster_default=True) == []


def test_a_sensitive_value_is_never_shown() -> None:
    key = ConfigKey("some.password", ConfigType.PASSWORD, None, "A key.", sensitive=True)
    entry = _entry(key, "hunter2", STATIC, (ConfigSynonym("some.password", "hunter2", STATIC),))
    assert entry.sensitive
    assert entry.value is None
    assert entry.synonyms == (ConfigSynonym("some.password", None, STATIC),)
