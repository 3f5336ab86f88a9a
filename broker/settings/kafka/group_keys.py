"""The keys of a group in Kafka 4.3: shown, because tools look for them, and without any effect.

All belong to protocols that are not served. They are read-only, so that none is changed in vain.
"""

from typing import Final

from broker.settings.kafka.broker_keys import BROKER_KEYS
from broker.settings.kafka.config_key import ConfigKey, ConfigType

_DOCUMENTATION = (
    "Shown for compatibility, no effect: only the classic group protocol is served, in which "
    "clients choose their timeouts."
)
# Their defaults are the broker's keys of the same name behind `group.`.
_OF_THE_BROKER = (
    "consumer.assignment.interval.ms",
    "consumer.heartbeat.interval.ms",
    "consumer.session.timeout.ms",
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


def _key(name: str, kind: ConfigType, default: str | None, synonym: str | None) -> ConfigKey:
    return ConfigKey(
        name, kind, default, _DOCUMENTATION, synonym=synonym, read_only=True, inert=True
    )


GROUP_KEYS: Final = {
    key.name: key
    for key in (
        *(
            _key(name, BROKER_KEYS[f"group.{name}"].type, None, f"group.{name}")
            for name in _OF_THE_BROKER
        ),
        *(_key(*row, synonym=None) for row in _OTHERS),
    )
}
