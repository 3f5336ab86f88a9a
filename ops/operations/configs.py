"""Configurations of topics and of the broker: reading them, and changing those of a topic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from moldau.broker.settings.kafka.config_key import ConfigSource
from moldau.broker.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from moldau.broker.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau.ops.client import Cluster, refusal

TOPIC, BROKER = 2, 4  # resource types of DescribeConfigs and AlterConfigs
SET, DELETE = 0, 1


class Config(msgspec.Struct, frozen=True):
    name: str
    value: str | None  # None: it is secret, or not set
    source: str  # topic, broker or default


def topic_configs(cluster: Cluster, name: str) -> list[Config]:
    """Raises ClientError."""
    resource = DescribeConfigsResource(TOPIC, name, None)
    (result,) = cluster.call(DescribeConfigsRequest([resource])).results
    if result.error_code:
        raise refusal(f"topic {name}", result.error_code, result.error_message)
    return [
        Config(
            entry.name, None if entry.is_sensitive else entry.value, _source(entry.config_source)
        )
        for entry in sorted(result.configs, key=lambda entry: entry.name)
    ]


def _source(source: int) -> str:
    if source == ConfigSource.DEFAULT_CONFIG:
        return "default"
    return "topic" if source == ConfigSource.DYNAMIC_TOPIC_CONFIG else "broker"


def config_values(cluster: Cluster, topics: Sequence[str], key: str) -> dict[str, str | None]:
    """One configuration of many topics; topics that cannot be described are left out."""
    wanted = [DescribeConfigsResource(TOPIC, name, [key]) for name in topics]
    return {
        result.resource_name: entry.value
        for result in cluster.call(DescribeConfigsRequest(wanted)).results
        if not result.error_code
        for entry in result.configs
        if entry.name == key
    }


def alter_topic_configs(
    cluster: Cluster, name: str, changes: Iterable[tuple[str, str | None]], *, dry_run: bool = False
) -> None:
    """None resets a configuration to the broker's default. Raises ClientError."""
    operations = [
        AlterableConfig(key, DELETE if value is None else SET, value) for key, value in changes
    ]
    resource = AlterConfigsResource(TOPIC, name, operations)
    (answer,) = cluster.call(IncrementalAlterConfigsRequest([resource], dry_run)).responses
    if answer.error_code:
        raise refusal(f"topic {name}", answer.error_code, answer.error_message)


def broker_configs(cluster: Cluster, names: Sequence[str]) -> dict[str, str]:
    """Values by name; empty where nothing is set. Raises ClientError."""
    node = cluster.nodes()[0]
    wanted = DescribeConfigsResource(BROKER, str(node.node_id), list(names))
    (answer,) = cluster.call(DescribeConfigsRequest([wanted]), node).results
    if answer.error_code:
        raise refusal(f"broker {node.node_id}", answer.error_code, answer.error_message)
    found = {one.name: one.value or "" for one in answer.configs}
    return {name: found.get(name, "") for name in names}
