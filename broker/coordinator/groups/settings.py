"""The limits of groups, from the configuration of the broker and of single groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from moldau.broker.group.config import ConsumerConfig, ConsumerLimits, GroupConfig
from moldau.broker.settings.kafka import BrokerConfig, group_value
from moldau.broker.store.topics import TopicStore


class GroupSettings:
    """The configuration of single groups, as stored."""

    def __init__(self, store: TopicStore) -> None:
        self._store = store
        self.by_id: Mapping[str, Mapping[str, str]] = {}
        self.on_loaded: Callable[[], None] = lambda: None

    async def load(self) -> None:
        self.by_id = await self._store.group_configs()
        self.on_loaded()


def group_config(
    config: BrokerConfig, of_groups: Mapping[str, Mapping[str, str]] | None = None
) -> GroupConfig:
    return GroupConfig(
        min_session_timeout_ms=config.get_int("group.min.session.timeout.ms"),
        max_session_timeout_ms=config.get_int("group.max.session.timeout.ms"),
        initial_rebalance_delay_ms=config.get_int("group.initial.rebalance.delay.ms"),
        max_size=config.get_int("group.max.size"),
        offset_metadata_max_size=config.get_int("offset.metadata.max.bytes"),
        offsets_retention_ms=config.get_int("offsets.retention.minutes") * 60_000,
        consumer=_consumer_config(config, of_groups or {}),
    )


def _consumer_config(
    config: BrokerConfig, of_groups: Mapping[str, Mapping[str, str]]
) -> ConsumerConfig:
    policy = config.get("group.consumer.migration.policy")
    return ConsumerConfig(
        enabled="consumer" in config.get("group.coordinator.rebalance.protocols").split(","),
        limits=_limits({}, config),
        of_group={group_id: _limits(own, config) for group_id, own in of_groups.items()},
        max_size=config.get_int("group.consumer.max.size"),
        assignors=tuple(config.get("group.consumer.assignors").split(",")),
        upgrades=policy in ("bidirectional", "upgrade"),
        downgrades=policy in ("bidirectional", "downgrade"),
        pattern_refresh_ms=config.get_int("group.consumer.regex.refresh.interval.ms"),
    )


def _limits(own: Mapping[str, str], config: BrokerConfig) -> ConsumerLimits:
    return ConsumerLimits(
        session_timeout_ms=group_value("consumer.session.timeout.ms", own, config),
        heartbeat_interval_ms=group_value("consumer.heartbeat.interval.ms", own, config),
        assignment_interval_ms=group_value("consumer.assignment.interval.ms", own, config),
    )
