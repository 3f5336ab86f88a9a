"""The typed view that the log works with."""

import msgspec
import pytest

from moldau.broker.settings.kafka import BrokerConfig, TopicConfig, topic_config

MAX_LONG = 2**63 - 1


def test_defaults() -> None:
    assert topic_config({}) == TopicConfig(
        compact=False,
        delete=True,
        retention_ms=604_800_000,
        retention_bytes=-1,
        local_retention_ms=604_800_000,
        local_retention_bytes=-1,
        remote_storage=False,
        max_message_bytes=1_048_588,
        log_append_time=False,
        timestamp_before_max_ms=MAX_LONG,
        timestamp_after_max_ms=3_600_000,
        codec=None,
        codec_level=None,
        min_insync_replicas=1,
        delete_retention_ms=86_400_000,
        min_compaction_lag_ms=0,
        max_compaction_lag_ms=MAX_LONG,
        min_cleanable_dirty_ratio=0.5,
    )


@pytest.mark.parametrize(
    ("overrides", "changed"),
    [
        ({"retention.ms": "1"}, {"retention_ms": 1, "local_retention_ms": 1}),
        ({"retention.bytes": "2"}, {"retention_bytes": 2, "local_retention_bytes": 2}),
        ({"retention.bytes": "-7"}, {"retention_bytes": -1, "local_retention_bytes": -1}),
        ({"local.retention.ms": "3"}, {"local_retention_ms": 3}),
        ({"local.retention.bytes": "4"}, {"local_retention_bytes": 4}),
        ({"remote.storage.enable": "true"}, {"remote_storage": True}),
        ({"max.message.bytes": "5"}, {"max_message_bytes": 5}),
        ({"message.timestamp.type": "LogAppendTime"}, {"log_append_time": True}),
        ({"message.timestamp.before.max.ms": "6"}, {"timestamp_before_max_ms": 6}),
        ({"message.timestamp.after.max.ms": "7"}, {"timestamp_after_max_ms": 7}),
        ({"min.insync.replicas": "8"}, {"min_insync_replicas": 8}),
        ({"delete.retention.ms": "9"}, {"delete_retention_ms": 9}),
        ({"min.compaction.lag.ms": "10"}, {"min_compaction_lag_ms": 10}),
        ({"max.compaction.lag.ms": "11"}, {"max_compaction_lag_ms": 11}),
        ({"min.cleanable.dirty.ratio": "0.25"}, {"min_cleanable_dirty_ratio": 0.25}),
    ],
)
def test_an_override_changes_its_attribute_and_no_other(
    overrides: dict[str, str], changed: dict[str, object]
) -> None:
    assert topic_config(overrides) == msgspec.structs.replace(topic_config({}), **changed)


@pytest.mark.parametrize(
    ("policy", "compact", "delete"),
    [
        ("delete", False, True),
        ("compact", True, False),
        ("compact, delete", True, True),
        ("", False, False),
    ],
)
def test_cleanup_policies(policy: str, compact: bool, delete: bool) -> None:
    config = topic_config({"cleanup.policy": policy})
    assert (config.compact, config.delete) == (compact, delete)


@pytest.mark.parametrize(
    ("codec", "number", "level"),
    [
        ("producer", None, None),
        ("uncompressed", 0, None),
        ("gzip", 1, -1),
        ("snappy", 2, None),
        ("lz4", 3, 9),
        ("zstd", 4, 3),
    ],
)
def test_codecs(codec: str, number: int | None, level: int | None) -> None:
    config = topic_config({"compression.type": codec})
    assert (config.codec, config.codec_level) == (number, level)


def test_a_level_counts_for_its_own_codec_only() -> None:
    levels = {"compression.gzip.level": "4", "compression.zstd.level": "-5"}
    assert topic_config({"compression.type": "gzip", **levels}).codec_level == 4
    assert topic_config({"compression.type": "zstd", **levels}).codec_level == -5
    assert topic_config({"compression.type": "lz4", **levels}).codec_level == 9


def test_the_brokers_values_are_the_topics_defaults() -> None:
    broker = BrokerConfig(
        static={"log.retention.hours": "1", "compression.type": "zstd"},
        dynamic_default={"log.cleanup.policy": "compact", "message.max.bytes": "7"},
        dynamic_broker={"compression.zstd.level": "9"},
    )
    config = topic_config({"max.message.bytes": "8"}, broker)
    assert config.retention_ms == config.local_retention_ms == 3_600_000
    assert config.compact
    assert not config.delete
    assert (config.codec, config.codec_level) == (4, 9)
    assert config.max_message_bytes == 8
