"""A topic's configuration as the log reads it: typed, resolved once, plain attributes.

It is rebuilt when the configuration of the topic or the broker changes; nothing is looked up by
name on the hot path.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from moldau.broker.settings.kafka.resolve import BrokerConfig, topic_value
from moldau.broker.settings.kafka.topic_keys import MIRROR_SOURCE

# Codec numbers of the record batch header; `producer` has none: batches are stored as received.
CODEC_NUMBERS: Final = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
CODECS_WITH_LEVELS: Final = frozenset({"gzip", "lz4", "zstd"})


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration in force for a topic. -1 is "no limit" for every retention."""

    compact: bool
    delete: bool
    retention_ms: int
    retention_bytes: int
    local_retention_ms: int
    local_retention_bytes: int
    remote_storage: bool
    max_message_bytes: int
    log_append_time: bool
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    codec: int | None
    codec_level: int | None
    min_insync_replicas: int
    delete_retention_ms: int
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    min_cleanable_dirty_ratio: float
    validate_records: bool = True
    unpacked_max_bytes: int = 64 << 20
    # Whether records are decompressed although they need not be validated.
    looks_inside: bool = False
    native: bool = False
    native_key: str = ""
    native_bits: int = 10
    native_value: str = ""
    mirror_source: str = ""  # set: only the mirror of the topic may append to it


def topic_config(overrides: Mapping[str, str], broker: BrokerConfig | None = None) -> TopicConfig:
    """Return the configuration in force for a topic that sets `overrides`."""
    in_force = broker or BrokerConfig()

    def text(name: str) -> str:
        return topic_value(name, overrides, in_force)

    def integer(name: str) -> int:
        return int(text(name))

    policies = text("cleanup.policy").split(",")
    codec = text("compression.type")
    retention_ms, retention_bytes = integer("retention.ms"), integer("retention.bytes")
    local_ms, local_bytes = integer("local.retention.ms"), integer("local.retention.bytes")
    compact, number = "compact" in policies, CODEC_NUMBERS.get(codec)
    native, max_message_bytes = text("moldau.storage") == "native", integer("max.message.bytes")
    return TopicConfig(
        compact=compact,
        delete="delete" in policies,
        retention_ms=retention_ms,
        # Kafka treats any negative size as "no limit".
        retention_bytes=max(retention_bytes, -1),
        local_retention_ms=retention_ms if local_ms == -2 else local_ms,
        local_retention_bytes=max(retention_bytes if local_bytes == -2 else local_bytes, -1),
        remote_storage=text("remote.storage.enable") == "true",
        max_message_bytes=max_message_bytes,
        log_append_time=text("message.timestamp.type") == "LogAppendTime",
        timestamp_before_max_ms=integer("message.timestamp.before.max.ms"),
        timestamp_after_max_ms=integer("message.timestamp.after.max.ms"),
        codec=number,
        codec_level=integer(f"compression.{codec}.level") if codec in CODECS_WITH_LEVELS else None,
        min_insync_replicas=integer("min.insync.replicas"),
        delete_retention_ms=integer("delete.retention.ms"),
        min_compaction_lag_ms=integer("min.compaction.lag.ms"),
        max_compaction_lag_ms=integer("max.compaction.lag.ms"),
        min_cleanable_dirty_ratio=float(text("min.cleanable.dirty.ratio")),
        validate_records=text("moldau.batch.validation") == "full",
        # Batches that would be accepted without a codec are accepted with one.
        unpacked_max_bytes=max(integer("moldau.batch.unpacked.max.bytes"), max_message_bytes),
        looks_inside=compact or number is not None or native,
        native=native,
        native_key=text("moldau.native.key"),
        native_bits=integer("moldau.native.sequence.bits"),
        native_value=text("moldau.native.value"),
        mirror_source=text(MIRROR_SOURCE),
    )
