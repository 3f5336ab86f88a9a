"""The loggers of a broker as a configuration resource (KIP-412): describes them, and sets levels.

A broker answers for itself only, as in Kafka. If all workers are advertised as one broker, a change
reaches all of them.
"""

from __future__ import annotations

import msgspec

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode, KafkaError
from moldau.broker.logging_setup import LEVELS, ROOT
from moldau.broker.settings.kafka import ConfigEntry, ConfigOperation, ConfigSource, ConfigType
from moldau.broker.store.topics import Change
from moldau.broker.wire.messages.incremental_alter_configs import AlterableConfig

CHANGE = "loggers"  # the kind of change; the name of such a change is the new levels as JSON
_DOCUMENTATION = f"The level of this logger: {', '.join(LEVELS)}. It lasts until the worker ends."
_decode = msgspec.json.Decoder(dict[str, str | None]).decode


def describe(broker: Broker, node: str, keys: list[str] | None) -> list[ConfigEntry]:
    """Raises KafkaError."""
    _check_node(broker, node)
    return [
        ConfigEntry(
            name,
            level,
            read_only=False,
            source=ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG,
            sensitive=False,
            synonyms=(),
            type=ConfigType.STRING,
            documentation=_DOCUMENTATION,
        )
        for name, level in broker.log_levels.in_force().items()
        if not keys or name in keys
    ]


async def alter(
    broker: Broker, node: str, configs: list[AlterableConfig], *, validate_only: bool
) -> None:
    """All of them or none. Raises KafkaError."""
    if len({config.name for config in configs}) != len(configs):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a logger is named more than once")
    _check_node(broker, node)
    known = broker.log_levels.in_force()
    levels = {config.name: _level(config, known) for config in configs}
    if validate_only or not levels:
        return
    broker.log_levels.change(levels)
    if broker.settings.workers > len(broker.nodes):
        encoded = msgspec.json.encode(levels).decode()
        await broker.store.topics.announce(Change(CHANGE, encoded))


def apply(broker: Broker, change: Change) -> None:
    """Apply a change that another worker announced."""
    broker.log_levels.change(_decode(change.name))


def _check_node(broker: Broker, name: str) -> None:
    if not name.lstrip("-").isdecimal():
        text = f"Broker id must be an integer, but it is: {name}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    if name != str(broker.node_id):
        text = f"Unexpected broker id, expected {broker.node_id} but received {name}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)


def _level(config: AlterableConfig, known: dict[str, str]) -> str | None:
    name, level, operation = config.name, config.value, config.config_operation
    if operation not in (ConfigOperation.SET, ConfigOperation.DELETE):
        text = f"Operation {operation} is not allowed for loggers: a level is set or deleted"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    if operation == ConfigOperation.SET and level is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for {name}")
    if name not in known:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Logger {name} does not exist!")
    if operation == ConfigOperation.DELETE:
        if name == ROOT:
            text = f"Removing the log level of the {ROOT} logger is not allowed"
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)
        return None
    if level not in LEVELS:
        text = (
            f"Cannot set the log level of {name} to {level} as it is not a supported log level. "
            f"Valid log levels are {', '.join(LEVELS)}"
        )
        raise KafkaError(ErrorCode.INVALID_CONFIG, text)
    return level
