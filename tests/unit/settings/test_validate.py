"""What a topic or a broker may be configured to, and why not."""

import pytest

from moldau.broker.settings.kafka import (
    BROKER_KEYS,
    TOPIC_KEYS,
    BrokerConfig,
    InvalidConfig,
    validate_broker,
    validate_static,
    validate_topic,
)

ARCHIVED = BrokerConfig({"remote.log.storage.system.enable": "true"})


def test_every_default_may_be_set() -> None:
    validate_topic({key.name: key.default for key in TOPIC_KEYS.values()})
    validate_broker(
        {
            key.name: key.default
            for key in BROKER_KEYS.values()
            if key.default is not None and not key.read_only
        }
    )
    validate_static(
        {
            key.name: key.default
            for key in BROKER_KEYS.values()
            if key.default is not None and not key.set_by
        }
    )
    validate_topic({})


@pytest.mark.parametrize(
    "overrides",
    [
        {"cleanup.policy": ""},
        {"cleanup.policy": "compact,delete"},
        {"retention.ms": "0"},
        {"retention.ms": "-1", "retention.bytes": "-1"},
        # Without remote storage local retention means nothing, and Kafka does not compare it.
        {"local.retention.ms": "10", "retention.ms": "5"},
        {"leader.replication.throttled.replicas": "*"},
        {"moldau.storage": "log"},
    ],
)
def test_a_topic_may_set(overrides: dict[str, str]) -> None:
    validate_topic(overrides)


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ({"x": "1"}, r"^Unknown topic config name: x$"),
        ({"retention": "1"}, r"^Unknown topic config name: retention"),
        (
            {"retntion.ms": "1"},
            r"^Unknown topic config name: retntion\.ms; did you mean retention\.ms\?$",
        ),
        # Of the broker, not of a topic.
        ({"log.retention.ms": "1"}, r"^Unknown topic config name: log\.retention\.ms"),
        ({"retention.ms": None}, r"^Null value not supported for topic configs: retention\.ms$"),
        ({"retention.ms": "-2"}, r"'-2' for configuration retention\.ms: must be at least -1"),
        ({"retention.ms": "1d"}, r"'1d' for configuration retention\.ms: must be a whole number"),
        ({"segment.bytes": "1048575"}, r"segment\.bytes: must be at least 1048576"),
        ({"cleanup.policy": "Delete"}, r"cleanup\.policy: must be a list of compact, delete"),
        ({"cleanup.policy": "delete,delete"}, r"cleanup\.policy: must not name a value twice"),
        ({"compression.type": "none"}, r"must be one of uncompressed, gzip, snappy, lz4, zstd"),
        ({"compression.gzip.level": "0"}, r"must be from 1 to 9 or -1"),
        ({"message.timestamp.type": "createtime"}, r"must be one of CreateTime, LogAppendTime"),
        ({"preallocate": "maybe"}, r"must be true or false"),
        ({"min.cleanable.dirty.ratio": "1.5"}, r"must be from 0 to 1"),
        ({"min.insync.replicas": "0"}, r"must be at least 1"),
        ({"moldau.native.value": "v"}, r"moldau\.native\.value: only with moldau\.storage=native"),
        (
            {"moldau.storage": "native", "cleanup.policy": "compact"},
            r"native topics cannot be compacted",
        ),
        (
            {"moldau.storage": "native", "remote.storage.enable": "true"},
            r"native topics cannot have remote\.storage\.enable",
        ),
        (
            {"moldau.storage": "native", "moldau.native.sequence.bits": "21"},
            r"moldau\.native\.sequence\.bits",
        ),
        ({"moldau.storage": "file"}, r"must be one of log, native"),
        (
            {"leader.replication.throttled.replicas": "0:1," * 9000 + "0:1"},
            r"36003 characters, more than 32767",
        ),
        (
            {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"},
            r"min\.compaction\.lag\.ms \(10\) must not be more than max\.compaction\.lag\.ms \(9\)",
        ),
    ],
)
def test_a_topic_may_not_set(overrides: dict[str, str | None], reason: str) -> None:
    with pytest.raises(InvalidConfig, match=reason):
        validate_topic(overrides)


def test_how_records_lie_is_fixed_at_creation() -> None:
    native = {"moldau.storage": "native", "moldau.native.sequence.bits": "12"}
    validate_topic(native, existing=native)
    validate_topic({**native, "moldau.native.value": "payload"}, existing=native)
    for change in ({}, {**native, "moldau.native.sequence.bits": "11"}):
        with pytest.raises(InvalidConfig, match="fixed at creation"):
            validate_topic(change, existing=native)
    with pytest.raises(InvalidConfig, match=r"moldau\.storage is fixed at creation"):
        validate_topic({"moldau.storage": "native"}, existing={})


def test_a_topic_is_checked_against_the_brokers_defaults() -> None:
    broker = BrokerConfig({"log.cleaner.max.compaction.lag.ms": "9"})
    validate_topic({"min.compaction.lag.ms": "9"}, broker)
    with pytest.raises(InvalidConfig, match=r"max\.compaction\.lag\.ms \(9\)"):
        validate_topic({"min.compaction.lag.ms": "10"}, broker)


@pytest.mark.parametrize(
    "overrides",
    [
        {"local.retention.ms": "10", "retention.ms": "10"},
        {"local.retention.ms": "-1", "retention.ms": "-1"},
        {"local.retention.bytes": "10"},
        {"local.retention.bytes": "-2", "retention.bytes": "5"},
        {"cleanup.policy": ""},
        {"remote.log.copy.disable": "true"},
        {"remote.log.copy.disable": "true", "local.retention.ms": "7", "retention.ms": "7"},
    ],
)
def test_an_archived_topic_may_set(overrides: dict[str, str]) -> None:
    validate_topic({"remote.storage.enable": "true", **overrides}, ARCHIVED)


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (
            {"local.retention.ms": "11", "retention.ms": "10"},
            r"'11' for configuration local\.retention\.ms: must be at most retention\.ms \(10\)",
        ),
        ({"local.retention.ms": "604800001"}, r"must be at most retention\.ms \(604800000\)"),
        ({"local.retention.ms": "-1"}, r"'-1' for configuration local\.retention\.ms"),
        (
            {"local.retention.bytes": "11", "retention.bytes": "10"},
            r"local\.retention\.bytes: must be at most retention\.bytes \(10\)",
        ),
        ({"cleanup.policy": "compact"}, r"cleanup\.policy delete or none, not compact"),
        ({"cleanup.policy": "compact,delete"}, r"not compact,delete"),
        (
            {"remote.log.copy.disable": "true", "local.retention.ms": "7"},
            r"local\.retention\.ms: must be 604800000, as retention\.ms",
        ),
        (
            {"remote.log.copy.disable": "true", "local.retention.bytes": "7"},
            r"local\.retention\.bytes: must be -1, as retention\.bytes",
        ),
    ],
)
def test_an_archived_topic_may_not_set(overrides: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidConfig, match=reason):
        validate_topic({"remote.storage.enable": "true", **overrides}, ARCHIVED)


def test_remote_storage_needs_an_archive_and_leaves_with_consent() -> None:
    on = {"remote.storage.enable": "true"}
    with pytest.raises(InvalidConfig, match=r"needs remote\.log\.storage\.system\.enable=true"):
        validate_topic(on)
    for off in ({}, {"remote.storage.enable": "false"}):
        with pytest.raises(InvalidConfig, match=r"without remote\.log\.delete\.on\.disable=true"):
            validate_topic(off, ARCHIVED, existing=on)
        validate_topic({**off, "remote.log.delete.on.disable": "true"}, ARCHIVED, existing=on)
        validate_topic(off, ARCHIVED, existing={})


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ({"no.such.key": "1"}, r"^Unknown broker config name: no\.such\.key"),
        ({"log.retention.ms": None}, r"^Null value not supported for broker configs"),
        ({"log.retention.ms": "0"}, r"log\.retention\.ms: must be at least 1 or -1"),
        ({"num.partitions": "3"}, r"^Cannot update these configs dynamically: num\.partitions$"),
        (
            {"node.id": "3", "log.retention.ms": "5", "log.retention.hours": "1"},
            r"dynamically: log\.retention\.hours, node\.id$",
        ),
        ({"log.cleaner.min.compaction.lag.ms": "9223372036854775807"}, r"must not be more than"),
    ],
)
def test_a_running_broker_refuses(overrides: dict[str, str | None], reason: str) -> None:
    with pytest.raises(InvalidConfig, match=reason):
        validate_broker(overrides, BrokerConfig({"log.cleaner.max.compaction.lag.ms": "5"}))


def test_a_running_broker_compares_local_retention_where_there_is_an_archive() -> None:
    change: dict[str, str | None] = {"log.local.retention.ms": "10", "log.retention.ms": "5"}
    validate_broker(change)
    with pytest.raises(InvalidConfig, match=r"at most log\.retention\.ms \(5\)"):
        validate_broker(change, ARCHIVED)


@pytest.mark.parametrize(
    ("configs", "reason"),
    [
        (
            {"num.partition": "3"},
            r"^Unknown broker config name: num\.partition; did you mean num\.partitions\?",
        ),
        ({"num.partitions": "0"}, r"num\.partitions: must be at least 1"),
        ({"log.retention.hours": "0"}, r"log\.retention\.hours: must be at least 1 or -1"),
        ({"offsets.topic.num.partitions": "51"}, r"must be 50"),
        (
            {"group.min.session.timeout.ms": "5", "group.max.session.timeout.ms": "4"},
            r"group\.min\.session\.timeout\.ms \(5\) must not be more than",
        ),
        ({"listeners": "PLAINTEXT://:1"}, r"listeners cannot be set: .* --host and --port"),
    ],
)
def test_a_start_is_refused_with(configs: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidConfig, match=reason):
        validate_static(configs)
