"""IncrementalAlterConfigs applies its operations to the configuration of a resource.

This is pure and unchecked: the result goes through `validate.py`.
"""

import enum
from collections.abc import Iterable, Mapping

from moldau.broker.settings.kafka.broker_keys import BROKER_KEYS
from moldau.broker.settings.kafka.config_key import (
    ConfigKey,
    ConfigType,
    InvalidConfig,
    InvalidConfigRequest,
)
from moldau.broker.settings.kafka.resolve import BrokerConfig, topic_value
from moldau.broker.settings.kafka.topic_keys import TOPIC_KEYS


class ConfigOperation(enum.IntEnum):
    """The operations with their numbers on the wire."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


def apply_incremental(
    current: Mapping[str, str],
    operations: Iterable[tuple[str, int, str | None]],
    *,
    keys: Mapping[str, ConfigKey] = TOPIC_KEYS,
    broker: BrokerConfig | None = None,
) -> dict[str, str]:
    """Return the configuration after the (name, operation, value) triples.

    `keys` are those of the resource. APPEND and SUBTRACT on a list that is not set start from the
    value in force, for which `broker` is needed.
    """
    altered = dict(current)
    seen = set()
    for name, code, value in operations:
        if name in seen:
            raise InvalidConfigRequest(f"{name} is altered twice in one request")
        seen.add(name)
        operation = _operation(name, code)
        if operation is ConfigOperation.DELETE:
            altered.pop(name, None)
            continue
        if value is None:
            raise InvalidConfigRequest(f"Null value not supported for: {name}")
        if operation is ConfigOperation.SET:
            altered[name] = value
            continue
        key = keys.get(name)
        if key is None or key.type is not ConfigType.LIST:
            raise InvalidConfig(f"Can't {operation.name} to key {name}: its type is not LIST")
        before = altered.get(name)
        if before is None:
            before = _in_force(key, keys, broker or BrokerConfig())
        altered[name] = ",".join(_combined(_parts(before), operation, _parts(value)))
    return altered


def _operation(name: str, code: int) -> ConfigOperation:
    try:
        return ConfigOperation(code)
    except ValueError:
        raise InvalidConfigRequest(f"Unknown operation {code} on {name}") from None


def _in_force(key: ConfigKey, keys: Mapping[str, ConfigKey], broker: BrokerConfig) -> str:
    if keys is BROKER_KEYS:
        return broker.get(key.name)
    return topic_value(key.name, {}, broker) if keys is TOPIC_KEYS else key.default or ""


def _parts(text: str) -> list[str]:
    return [part for part in map(str.strip, text.split(",")) if part]


def _combined(before: list[str], operation: ConfigOperation, parts: list[str]) -> list[str]:
    if operation is ConfigOperation.SUBTRACT:
        return [part for part in before if part not in parts]
    # A dict keeps the order and drops duplicates.
    return list(dict.fromkeys([*before, *parts]))
