"""Kafka's configuration keys of topics, brokers and groups, without I/O.

    config_key.py                the definition of a key: type, default, allowed values, parsing
    …_keys.py                    the declarations
    resolve.py                   the value in force and its source (DescribeConfigs)
    validate.py, alter.py        checking and applying changes (CreateTopics, AlterConfigs)
    topic_config.py              the typed view that the log reads

This package imports nothing else of Moldau.
"""

from moldau.broker.settings.kafka.alter import ConfigOperation, apply_incremental
from moldau.broker.settings.kafka.broker_keys import BROKER_KEYS
from moldau.broker.settings.kafka.config_key import (
    ConfigKey,
    ConfigSource,
    ConfigType,
    InvalidConfig,
    InvalidConfigRequest,
)
from moldau.broker.settings.kafka.group_keys import CONSUMER_GROUP_KEYS, GROUP_KEYS, group_value
from moldau.broker.settings.kafka.resolve import (
    BrokerConfig,
    ConfigEntry,
    ConfigSynonym,
    Resolved,
    describe_broker,
    describe_client_metrics,
    describe_group,
    describe_topic,
    topic_value,
)
from moldau.broker.settings.kafka.telemetry_keys import CLIENT_METRICS_KEYS, validate_client_metrics
from moldau.broker.settings.kafka.topic_config import TopicConfig, topic_config
from moldau.broker.settings.kafka.topic_keys import TOPIC_KEYS
from moldau.broker.settings.kafka.validate import (
    validate_broker,
    validate_group,
    validate_static,
    validate_topic,
)

__all__ = [
    "BROKER_KEYS",
    "CLIENT_METRICS_KEYS",
    "CONSUMER_GROUP_KEYS",
    "GROUP_KEYS",
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
    "describe_client_metrics",
    "describe_group",
    "describe_topic",
    "group_value",
    "topic_config",
    "topic_value",
    "validate_broker",
    "validate_client_metrics",
    "validate_group",
    "validate_static",
    "validate_topic",
]
