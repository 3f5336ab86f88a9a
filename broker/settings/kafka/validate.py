"""Checks whether a configuration may be stored: known names, values in range, consistent values.

Every check raises InvalidConfig with a message for the user. Checks across keys use the values that
would be in force, broker defaults included, as Kafka does.
"""

import difflib
from collections.abc import Iterable, Mapping

from moldau.broker.settings.kafka.broker_keys import BROKER_KEYS
from moldau.broker.settings.kafka.config_key import ConfigKey, InvalidConfig, InvalidConfigRequest
from moldau.broker.settings.kafka.group_keys import CONSUMER_GROUP_KEYS, GROUP_KEYS, check_bounds
from moldau.broker.settings.kafka.resolve import BrokerConfig, topic_value
from moldau.broker.settings.kafka.topic_keys import FIXED, TOPIC_KEYS

LISTENER_PREFIX = "listener.name."
_PER_LISTENER = ("ssl.", "sasl.", "moldau.ssl.", "connections.max.reauth.ms")

# Kafka's limit: a value has to fit a string of the older message versions.
MAX_VALUE_LENGTH = 32767


def validate_topic(
    overrides: Mapping[str, str | None],
    broker: BrokerConfig | None = None,
    existing: Mapping[str, str] | None = None,
) -> None:
    """Check everything that a topic would set, in CreateTopics or after an alteration.

    `existing` is what it sets now: some changes depend on it.
    """
    broker = broker or BrokerConfig()
    checked = _check_each(overrides, TOPIC_KEYS, "topic")
    _check_compaction_lags(
        int(topic_value("min.compaction.lag.ms", checked, broker)),
        int(topic_value("max.compaction.lag.ms", checked, broker)),
    )
    _check_storage(checked, broker, existing)
    if topic_value("remote.storage.enable", checked, broker) == "true":
        _check_remote_storage(checked, broker)
    elif (
        topic_value("remote.storage.enable", existing or {}, broker) == "true"
        and topic_value("remote.log.delete.on.disable", checked, broker) != "true"
    ):
        raise InvalidConfig(
            "remote.storage.enable cannot be turned off without remote.log.delete.on.disable=true; "
            "to keep what is archived, leave it on and set remote.log.copy.disable=true"
        )


def _check_storage(
    checked: Mapping[str, str], broker: BrokerConfig, existing: Mapping[str, str] | None
) -> None:
    if existing is not None:
        for name in FIXED:
            old, new = topic_value(name, existing, broker), topic_value(name, checked, broker)
            if old != new:
                raise InvalidConfig(f"{name} is fixed at creation: {old!r}, not {new!r}")
    if topic_value("moldau.storage", checked, broker) != "native":
        odd = sorted(
            name
            for name, value in checked.items()
            if name.startswith("moldau.native.") and value != TOPIC_KEYS[name].default
        )
        if odd:
            raise InvalidConfig(f"{', '.join(odd)}: only with moldau.storage=native")
        return
    if "compact" in topic_value("cleanup.policy", checked, broker).split(","):
        raise InvalidConfig("native topics cannot be compacted: cleanup.policy must be delete")
    if topic_value("remote.storage.enable", checked, broker) == "true":
        raise InvalidConfig("native topics cannot have remote.storage.enable=true")


def validate_broker(
    overrides: Mapping[str, str | None], broker: BrokerConfig | None = None
) -> None:
    """Check everything that would be set at runtime, for the cluster or for one broker."""
    checked = _check_each(overrides, BROKER_KEYS, "broker")
    fixed = sorted(name for name in checked if BROKER_KEYS[name].read_only)
    if fixed:
        raise InvalidConfigRequest(f"Cannot update these configs dynamically: {', '.join(fixed)}")
    before = broker or BrokerConfig()
    _check_broker_values(
        BrokerConfig(before.static, before.dynamic_default, {**before.dynamic_broker, **checked})
    )


def validate_group(overrides: Mapping[str, str | None], broker: BrokerConfig) -> None:
    """Check everything that would be set for a group."""
    checked = _check_each(overrides, GROUP_KEYS, "group")
    fixed = sorted(name for name in checked if GROUP_KEYS[name].read_only)
    if fixed:
        raise InvalidConfig(f"These configs have no effect and cannot be set: {', '.join(fixed)}")
    check_bounds(checked, broker)


def validate_static(configs: Mapping[str, str]) -> None:
    """Check the configuration that an operator sets at start, in the [broker] table or the
    environment."""
    _check_each(_of_listeners(configs), BROKER_KEYS, "broker")
    configs = {n: v for n, v in configs.items() if not n.startswith(LISTENER_PREFIX)}
    checked = _check_each(configs, BROKER_KEYS, "broker")
    for name in checked:
        if BROKER_KEYS[name].set_by:
            raise InvalidConfig(
                f"{name} cannot be set: it is decided by {BROKER_KEYS[name].set_by} of moldau serve"
            )
    _check_broker_values(BrokerConfig(checked))


def _of_listeners(configs: Mapping[str, str]) -> dict[str, str]:
    """Return the values set for single listeners (`listener.name.<name>.ssl.client.auth`), by
    key."""
    found = {}
    for name, value in configs.items():
        if not name.startswith(LISTENER_PREFIX):
            continue
        words = name.removeprefix(LISTENER_PREFIX).split(".")
        keys = [".".join(words[at:]) for at in range(1, len(words))]
        key = next((key for key in keys if key in BROKER_KEYS), "")
        if not key.startswith(_PER_LISTENER):
            raise InvalidConfig(
                f"{name} cannot be set for one listener: only keys of ssl and sasl can"
                f"{_near_miss(keys[0] if keys else name, BROKER_KEYS)}"
            )
        found[key] = value
    return found


def _check_each(
    configs: Mapping[str, str | None], keys: Mapping[str, ConfigKey], kind: str
) -> dict[str, str]:
    checked = {}
    for name, value in configs.items():
        if name not in keys:
            raise InvalidConfig(f"Unknown {kind} config name: {name}{_near_miss(name, keys)}")
        if value is None:
            raise InvalidConfig(f"Null value not supported for {kind} configs: {name}")
        if len(value) > MAX_VALUE_LENGTH:
            raise InvalidConfig(
                f"Invalid value for configuration {name}: {len(value)} characters, "
                f"more than {MAX_VALUE_LENGTH}"
            )
        checked[name] = keys[name].canonical(value)
    return checked


def _near_miss(name: str, known: Iterable[str]) -> str:
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.8)
    return f"; did you mean {matches[0]}?" if matches else ""


def _check_broker_values(broker: BrokerConfig) -> None:
    _check_compaction_lags(
        broker.get_int("log.cleaner.min.compaction.lag.ms"),
        broker.get_int("log.cleaner.max.compaction.lag.ms"),
    )
    shortest, longest = "group.min.session.timeout.ms", "group.max.session.timeout.ms"
    if broker.get_int(shortest) > broker.get_int(longest):
        raise InvalidConfig(
            f"{shortest} ({broker.get(shortest)}) must not be more than "
            f"{longest} ({broker.get(longest)})"
        )
    check_bounds(
        {name: str(broker.get_int(f"group.{name}")) for name in CONSUMER_GROUP_KEYS}, broker
    )
    if broker.get_bool("remote.log.storage.system.enable"):
        for unit in ("ms", "bytes"):
            local, total = f"log.local.retention.{unit}", f"log.retention.{unit}"
            _check_local_retention(local, broker.get_int(local), total, broker.get_int(total))


def _check_compaction_lags(shortest: int, longest: int) -> None:
    if shortest > longest:
        raise InvalidConfig(
            f"min.compaction.lag.ms ({shortest}) must not be more than "
            f"max.compaction.lag.ms ({longest})"
        )


def _check_remote_storage(overrides: Mapping[str, str], broker: BrokerConfig) -> None:
    if not broker.get_bool("remote.log.storage.system.enable"):
        raise InvalidConfig(
            "Invalid value 'true' for configuration remote.storage.enable: it needs "
            "remote.log.storage.system.enable=true on the broker, where records are archived"
        )
    policy = topic_value("cleanup.policy", overrides, broker)
    if policy not in {"", "delete"}:
        raise InvalidConfig(
            f"remote.storage.enable needs cleanup.policy delete or none, not {policy}"
        )
    copies = topic_value("remote.log.copy.disable", overrides, broker) != "true"
    for unit in ("ms", "bytes"):
        local_name, total_name = f"local.retention.{unit}", f"retention.{unit}"
        local = int(topic_value(local_name, overrides, broker))
        total = int(topic_value(total_name, overrides, broker))
        _check_local_retention(local_name, local, total_name, total)
        if not copies and local not in {-2, total}:
            raise InvalidConfig(
                f"Invalid value '{local}' for configuration {local_name}: must be {total}, as "
                f"{total_name}, while remote.log.copy.disable is true"
            )


def _check_local_retention(local_name: str, local: int, total_name: str, total: int) -> None:
    """The retention in Redis cannot exceed the whole retention; -2 means the same."""
    if total < 0 or local == -2:
        return
    if local == -1 or local > total:
        raise InvalidConfig(
            f"Invalid value '{local}' for configuration {local_name}: must be at most "
            f"{total_name} ({total}), or -2 for the same"
        )
