"""The value of a key that is in force, its source, and its entry in DescribeConfigs.

Values are only parsed here; `validate.py` checks them before they are stored.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import msgspec

from moldau.broker.settings.kafka.broker_keys import BROKER_KEYS
from moldau.broker.settings.kafka.config_key import (
    ConfigKey,
    ConfigSource,
    ConfigType,
)
from moldau.broker.settings.kafka.group_keys import GROUP_KEYS, group_value
from moldau.broker.settings.kafka.telemetry_keys import CLIENT_METRICS_KEYS
from moldau.broker.settings.kafka.topic_keys import TOPIC_KEYS


class ConfigSynonym(msgspec.Struct, frozen=True):
    """One of the possible sources of a value."""

    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(msgspec.Struct, frozen=True):
    """One key in DescribeConfigs; `value` is None if it is sensitive or not set."""

    name: str
    value: str | None
    read_only: bool
    source: ConfigSource
    sensitive: bool
    synonyms: tuple[ConfigSynonym, ...]
    type: ConfigType
    documentation: str


class Resolved(NamedTuple):
    """The value in force, its source, and all candidates in order of precedence."""

    value: str | None
    source: ConfigSource
    synonyms: tuple[ConfigSynonym, ...]


class BrokerConfig(msgspec.Struct, frozen=True):
    """The configuration of a broker: set at start, for the whole cluster, and for this broker
    only."""

    static: dict[str, str] = {}
    dynamic_default: dict[str, str] = {}
    dynamic_broker: dict[str, str] = {}

    def resolve(self, name: str) -> Resolved:
        """Resolve a broker key. Raises KeyError for any other name.

        Sources have precedence over fallbacks, as in Kafka: log.retention.hours set for the cluster
        beats log.retention.ms set at start. An unset key takes the value of its fallbacks.
        """
        key = BROKER_KEYS[name]
        synonyms = tuple(self._candidates((name, *key.fallbacks)))
        if not synonyms:
            return Resolved(None, ConfigSource.DEFAULT_CONFIG, ())
        return Resolved(_as_value_of(key, synonyms[0]), synonyms[0].source, synonyms)

    def get(self, name: str) -> str:
        """Return the value of a broker key as Kafka prints it; empty if there is none."""
        return self.resolve(name).value or ""

    def get_int(self, name: str) -> int:
        return int(self.get(name))

    def get_bool(self, name: str) -> bool:
        return self.get(name) == "true"

    def _candidates(self, names: tuple[str, ...]) -> Iterator[ConfigSynonym]:
        for values, source in (
            (self.dynamic_broker, ConfigSource.DYNAMIC_BROKER_CONFIG),
            (self.dynamic_default, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
            (self.static, ConfigSource.STATIC_BROKER_CONFIG),
        ):
            for name in names:
                if name in values:
                    yield ConfigSynonym(name, values[name], source)
        for name in names:
            default = BROKER_KEYS[name].default
            if default is not None:
                yield ConfigSynonym(name, default, ConfigSource.DEFAULT_CONFIG)


def _as_value_of(key: ConfigKey, candidate: ConfigSynonym) -> str:
    """Return the candidate's value as one of `key`: hours and minutes become milliseconds."""
    origin = BROKER_KEYS[candidate.name]
    text = origin.canonical(candidate.value or "")
    if origin is key or not origin.milliseconds:
        return text
    # -1 is "no limit" in any unit.
    return text if text == "-1" else str(int(text) * origin.milliseconds)


def topic_value(name: str, overrides: Mapping[str, str], broker: BrokerConfig) -> str:
    """Return the value of a topic key as Kafka prints it: the topic's, the broker's or the
    default."""
    key = TOPIC_KEYS[name]
    own = overrides.get(name)
    if own is not None:
        return key.canonical(own)
    if key.synonym is not None:
        return broker.get(key.synonym)
    return key.default or ""


def describe_topic(
    overrides: Mapping[str, str], broker: BrokerConfig, names: Collection[str] | None = None
) -> list[ConfigEntry]:
    """Describe every topic key, or those in `names`; no names means all, like null and [] in
    Kafka."""
    return [
        _topic_entry(key, overrides, broker)
        for key in TOPIC_KEYS.values()
        if not names or key.name in names
    ]


def describe_broker(
    broker: BrokerConfig, names: Collection[str] | None = None, *, cluster_default: bool = False
) -> list[ConfigEntry]:
    """Describe every broker key, or those in `names`.

    `cluster_default` selects the broker resource with the empty name, which has only the values set
    for the whole cluster.
    """
    if cluster_default:
        broker = BrokerConfig(dynamic_default=broker.dynamic_default)
    entries = []
    for key in BROKER_KEYS.values():
        if names and key.name not in names:
            continue
        if not cluster_default:
            entries.append(_entry(key, *broker.resolve(key.name)))
        elif key.name in broker.dynamic_default:
            source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
            own = ConfigSynonym(key.name, broker.dynamic_default[key.name], source)
            entries.append(_entry(key, _as_value_of(key, own), source, (own,)))
    return entries


def describe_group(
    overrides: Mapping[str, str], broker: BrokerConfig, names: Collection[str] | None = None
) -> list[ConfigEntry]:
    """Describe every key of a group, or those in `names`."""
    entries = []
    for key in GROUP_KEYS.values():
        if names and key.name not in names:
            continue
        if key.name in overrides:
            source = ConfigSource.DYNAMIC_GROUP_CONFIG
            value = str(group_value(key.name, overrides, broker))
            own = ConfigSynonym(key.name, overrides[key.name], source)
            inherited = broker.resolve(key.synonym).synonyms if key.synonym else ()
            entries.append(_entry(key, value, source, (own, *inherited)))
        elif key.synonym is not None:
            entries.append(_entry(key, *broker.resolve(key.synonym)))
        else:
            source = ConfigSource.DEFAULT_CONFIG
            own = ConfigSynonym(key.name, key.default, source)
            entries.append(_entry(key, key.default, source, (own,)))
    return entries


def describe_client_metrics(
    overrides: Mapping[str, str], names: Collection[str] | None = None
) -> list[ConfigEntry]:
    """Describe every key of a client metrics subscription, or those in `names`."""
    entries = []
    for key in CLIENT_METRICS_KEYS.values():
        if names and key.name not in names:
            continue
        if key.name in overrides:
            source, value = (
                ConfigSource.DYNAMIC_CLIENT_METRICS_CONFIG,
                key.canonical(overrides[key.name]),
            )
            entries.append(_entry(key, value, source, (ConfigSynonym(key.name, value, source),)))
        else:
            entries.append(_entry(key, key.default, ConfigSource.DEFAULT_CONFIG, ()))
    return entries


def _topic_entry(key: ConfigKey, overrides: Mapping[str, str], broker: BrokerConfig) -> ConfigEntry:
    inherited = Resolved(key.default, ConfigSource.DEFAULT_CONFIG, ())
    if key.synonym is not None:
        inherited = broker.resolve(key.synonym)
    source, synonyms = inherited.source, inherited.synonyms
    if key.name in overrides:
        source = ConfigSource.DYNAMIC_TOPIC_CONFIG
        synonyms = (ConfigSynonym(key.name, overrides[key.name], source), *synonyms)
    return _entry(key, topic_value(key.name, overrides, broker), source, synonyms)


def _entry(
    key: ConfigKey,
    value: str | None,
    source: ConfigSource,
    synonyms: tuple[ConfigSynonym, ...],
) -> ConfigEntry:
    if key.sensitive:
        value = None
        synonyms = tuple(msgspec.structs.replace(synonym, value=None) for synonym in synonyms)
    return ConfigEntry(
        key.name,
        value,
        key.read_only,
        source,
        key.sensitive,
        synonyms,
        key.type,
        key.documentation,
    )
