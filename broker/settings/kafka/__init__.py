"""Kafka's configuration keys for topics and brokers: declared, checked, resolved, described.

`topic.py` and `broker.py` declare them, `resolve.py` says which value counts, `validate.py` and
`alter.py` serve the APIs that change them, `view.py` is what the log reads. No I/O; nothing of
ours is imported.
"""

from broker.settings.kafka.alter import ConfigOperation, apply_incremental
from broker.settings.kafka.broker_keys import BROKER_KEYS
from broker.settings.kafka.config_key import (
    ConfigKey,
    ConfigSource,
    ConfigType,
    InvalidConfig,
    InvalidConfigRequest,
)
from broker.settings.kafka.resolve import (
    BrokerConfig,
    ConfigEntry,
    ConfigSynonym,
    Resolved,
    describe_broker,
    describe_topic,
    topic_value,
)
from broker.settings.kafka.topic_config import TopicConfig, topic_config
from broker.settings.kafka.topic_keys import TOPIC_KEYS
from broker.settings.kafka.validate import validate_broker, validate_static, validate_topic

__all__ = [
    "BROKER_KEYS",
    "TOPIC_KEYS",
    "BrokerConfig",
    "ConfigEntry",
    "ConfigKey",
    "ConfigOperation",
    "ConfigSource",
    "ConfigSynonym",
    "ConfigType",
    "InvalidConfig",
    "InvalidConfigRequest",
    "Resolved",
    "TopicConfig",
    "apply_incremental",
    "describe_broker",
    "describe_topic",
    "topic_config",
    "topic_value",
    "validate_broker",
    "validate_static",
    "validate_topic",
]
