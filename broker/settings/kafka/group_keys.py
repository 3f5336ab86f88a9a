"""The keys of a group in Kafka 4.3, and the values in force for one.

Keys of the consumer protocol can be set for a group, within the broker's bounds. The others belong
to protocols that are not served: they are shown because tools look for them, and are read-only, so
that nobody changes them in vain.
"""

from collections.abc import Mapping
from typing import Final, Protocol

from moldau.broker.settings.kafka.broker_keys import BROKER_KEYS
from moldau.broker.settings.kafka.config_key import ConfigKey, ConfigType, InvalidConfig

_NOT_SERVED = "Shown for compatibility, no effect: this group protocol is not served."
# Their defaults are the broker's keys of the same name, prefixed with `group.`.
CONSUMER_GROUP_KEYS: Final = (
    "consumer.assignment.interval.ms",
    "consumer.heartbeat.interval.ms",
    "consumer.session.timeout.ms",
)
_OF_THE_BROKER = (
    "share.assignment.interval.ms",
    "share.delivery.count.limit",
    "share.heartbeat.interval.ms",
    "share.partition.max.record.locks",
    "share.record.lock.duration.ms",
    "share.session.timeout.ms",
    "streams.assignment.interval.ms",
    "streams.heartbeat.interval.ms",
    "streams.initial.rebalance.delay.ms",
    "streams.num.standby.replicas",
    "streams.session.timeout.ms",
)
_OTHERS = (
    ("share.auto.offset.reset", ConfigType.STRING, "latest"),
    ("share.isolation.level", ConfigType.STRING, "read_uncommitted"),
    ("share.renew.acknowledge.enable", ConfigType.BOOLEAN, "true"),
)


def _of_consumers(name: str) -> ConfigKey:
    broker = BROKER_KEYS[f"group.{name}"]
    text = f"For this group. {broker.documentation}"
    return ConfigKey(name, broker.type, None, text, broker.validator, synonym=broker.name)


def _not_served(
    name: str, kind: ConfigType, default: str | None, synonym: str | None = None
) -> ConfigKey:
    return ConfigKey(name, kind, default, _NOT_SERVED, synonym=synonym, read_only=True, inert=True)


GROUP_KEYS: Final = {
    key.name: key
    for key in (
        *map(_of_consumers, CONSUMER_GROUP_KEYS),
        *(
            _not_served(name, BROKER_KEYS[f"group.{name}"].type, None, f"group.{name}")
            for name in _OF_THE_BROKER
        ),
        *(_not_served(*row) for row in _OTHERS),
    )
}


class Broker(Protocol):
    def get_int(self, name: str) -> int: ...


def bounds(name: str, broker: Broker) -> tuple[int, int]:
    """Return the broker's bounds for one of `CONSUMER_GROUP_KEYS`."""
    what = name.removeprefix("consumer.")
    return (
        broker.get_int(f"group.consumer.min.{what}"),
        broker.get_int(f"group.consumer.max.{what}"),
    )


def group_value(name: str, overrides: Mapping[str, str], broker: Broker) -> int:
    """Return the value in force: the group's own value, held within the bounds, or the broker's."""
    if name not in overrides:
        return broker.get_int(f"group.{name}")
    least, most = bounds(name, broker)
    return min(max(int(overrides[name]), least), most)


def check_bounds(overrides: Mapping[str, str], broker: Broker) -> None:
    """Check the broker's bounds. Raises InvalidConfig."""
    for name in CONSUMER_GROUP_KEYS:
        if name in overrides:
            least, most = bounds(name, broker)
            if not least <= int(overrides[name]) <= most:
                raise InvalidConfig(f"{name} must be from {least} to {most}")
    session = group_value("consumer.session.timeout.ms", overrides, broker)
    if session <= group_value("consumer.heartbeat.interval.ms", overrides, broker):
        text = "consumer.session.timeout.ms must be more than consumer.heartbeat.interval.ms"
        raise InvalidConfig(text)
