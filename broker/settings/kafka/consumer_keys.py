"""The broker keys of the consumer protocol (KIP-848), under Kafka's names. Declarations only."""

from typing import Final

from moldau.broker.settings.kafka.config_key import ConfigKey, ConfigType, ListOf, OneOf, Range

INT, LIST, STRING = ConfigType.INT, ConfigType.LIST, ConfigType.STRING
POLICIES: Final = ("bidirectional", "upgrade", "downgrade", "disabled")


def _key(
    name: str, kind: ConfigType, default: str, documentation: str, validator: Range | OneOf | ListOf
) -> ConfigKey:
    return ConfigKey(name, kind, default, documentation, validator, read_only=True)


def _bounds(what: str, text: str, lowest: str, default: str, highest: str) -> tuple[ConfigKey, ...]:
    """Declare a key that groups may set for themselves, and the bounds of its values."""
    is_interval = what == "assignment.interval"
    least = Range(0 if is_interval else 1)
    prefix = "group.consumer"
    documentation = f"{text}, unless a group sets another."
    name = f"{prefix}.{what}.ms"
    return (
        # The one of these keys that is dynamic in Kafka (KIP-1263).
        ConfigKey(name, INT, default, documentation, least, read_only=not is_interval),
        _key(f"{prefix}.min.{what}.ms", INT, lowest, f"{text}: the least a group may set.", least),
        _key(f"{prefix}.max.{what}.ms", INT, highest, f"{text}: the most a group may set.", least),
    )


CONSUMER_KEYS: Final = (
    _key(
        "group.coordinator.rebalance.protocols",
        LIST,
        "classic,consumer",
        "The group protocols that are served. Without consumer (KIP-848), clients that ask for it "
        "are refused.",
        ListOf(("classic", "consumer", "share", "streams"), may_be_empty=False),
    ),
    *_bounds(
        "session.timeout",
        "After how much silence a member of the consumer protocol is removed",
        "45000",
        "45000",
        "60000",
    ),
    *_bounds(
        "heartbeat.interval",
        "How often members of the consumer protocol send heartbeats",
        "5000",
        "5000",
        "15000",
    ),
    *_bounds(
        "assignment.interval",
        "How far two computed assignments of a group are apart at least (KIP-1263)",
        "0",
        "1000",
        "15000",
    ),
    _key(
        "group.consumer.assignors",
        LIST,
        "uniform,range",
        "The assignors members of the consumer protocol may ask for; the first is the default.",
        ListOf(("uniform", "range"), may_be_empty=False),
    ),
    _key(
        "group.consumer.max.size",
        INT,
        "2147483647",
        "Most members a group of the consumer protocol may have.",
        Range(1),
    ),
    _key(
        "group.consumer.migration.policy",
        STRING,
        "bidirectional",
        "Whether a classic group with members becomes one of the consumer protocol when such a "
        "member joins (upgrade), and back when the last of them leaves (downgrade).",
        OneOf(POLICIES),
    ),
    _key(
        "group.consumer.regex.refresh.interval.ms",
        INT,
        "600000",
        "How often expressions that members subscribe to are matched with all topics. New topics "
        "are matched within 10 seconds.",
        Range(10_000),
    ),
)
