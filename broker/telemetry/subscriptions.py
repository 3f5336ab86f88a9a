"""Which metrics a client is asked for, and how often.

Subscriptions are set as CLIENT_METRICS resources. A client gets the union of those that match it,
at the shortest of their intervals, as in Kafka. As long as there are none, all clients get
`DEFAULT`, which is Moldau's own.

The id of what a client is asked for follows from it and from the client's instance id: any worker
recognises a push for which another one has named the metrics, and the id changes with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from crc32c import crc32c

from moldau.broker import expressions
from moldau.broker.settings.kafka import CLIENT_METRICS_KEYS, InvalidConfig, validate_client_metrics

ALL = "*"
DEFAULT_INTERVAL_MS = 300_000  # Kafka's value for a client that no subscription matches
_PARAMETERS = (
    "client_id",
    "client_instance_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)
UNKNOWN = "unknown"  # Kafka's word for a client that does not name its software


class Client(msgspec.Struct, frozen=True):
    """The properties of a client by which subscriptions are chosen."""

    client_id: str
    host: str
    port: int
    software_name: str
    software_version: str

    def parameters(self, instance_id: str) -> dict[str, str]:
        return {
            "client_id": self.client_id,
            "client_instance_id": instance_id,
            "client_software_name": self.software_name or UNKNOWN,
            "client_software_version": self.software_version or UNKNOWN,
            "client_source_address": self.host,
            "client_source_port": str(self.port),
        }


class Wanted(msgspec.Struct, frozen=True):
    """The metrics that a client is asked for."""

    metrics: tuple[str, ...]  # sorted prefixes; `*` alone stands for all
    interval_ms: int

    def subscription_id(self, instance_id: bytes) -> int:
        text = f"{','.join(self.metrics)} {self.interval_ms}".encode()
        high, low = int.from_bytes(instance_id[:8]), int.from_bytes(instance_id[8:])
        mixed = high ^ low
        number = crc32c(text) ^ (mixed >> 32) ^ (mixed & 0xFFFF_FFFF)
        return number - (1 << 32) if number >> 31 else number


class Subscription(msgspec.Struct, frozen=True):
    metrics: frozenset[str]
    interval_ms: int
    match: tuple[tuple[str, str], ...] = ()  # parameters and expressions

    def matches(self, parameters: Mapping[str, str]) -> bool:
        return all(
            expressions.matches_wholly(expression, parameters[name])
            for name, expression in self.match
        )


# These metrics tell whether a client, its network or the broker is slow, with few series each.
DEFAULT = Subscription(
    frozenset(
        f"org.apache.kafka.{name}"
        for name in (
            "consumer.connection.creation.total",
            "consumer.coordinator.assigned.partitions",
            "consumer.coordinator.commit.latency.",
            "consumer.coordinator.rebalance.latency.",
            "consumer.fetch.manager.fetch.latency.",
            "consumer.fetch.manager.records.lag.max",
            "consumer.node.request.latency.",
            "consumer.poll.idle.ratio.avg",
            "producer.buffer.exhausted.total",
            "producer.connection.creation.total",
            "producer.node.request.latency.",
            "producer.produce.throttle.time.",
            "producer.record.error.total",
            "producer.record.queue.time.",
            "producer.record.retry.total",
            "producer.record.send.total",
        )
    ),
    60_000,
)


def read_subscription(configs: Mapping[str, str]) -> Subscription:
    """Parse a subscription. Raises InvalidConfig."""
    validate_client_metrics(configs)

    def parts(name: str) -> tuple[str, ...]:
        found = CLIENT_METRICS_KEYS[name].parse(configs.get(name, ""))
        assert isinstance(found, tuple)
        return found

    default = CLIENT_METRICS_KEYS["interval.ms"].default
    interval = int(configs.get("interval.ms", default) or 0)
    return Subscription(
        frozenset(parts("metrics")), interval, tuple(map(_condition, parts("match")))
    )


def _condition(text: str) -> tuple[str, str]:
    """Parse a condition `name=expression`. Raises InvalidConfig."""
    words = text.split("=")
    name, expression = words[0].strip(), words[-1].strip()
    if len(words) != 2 or name not in _PARAMETERS:
        raise InvalidConfig(f"Illegal client matching pattern: {text[:200]}")
    if not expressions.is_valid(expression):
        raise InvalidConfig(f"Illegal client matching pattern: {text[:200]}: it is not RE2 syntax")
    return name, expression


def wanted(subscriptions: Iterable[Subscription], client: Client, instance_id: str) -> Wanted:
    """Return the metrics that a client is asked for. `instance_id` is in its text form."""
    parameters = client.parameters(instance_id)
    metrics: set[str] = set()
    interval = DEFAULT_INTERVAL_MS
    for each in subscriptions:
        if each.matches(parameters):
            metrics |= each.metrics
            interval = min(interval, each.interval_ms)
    return Wanted((ALL,) if ALL in metrics else tuple(sorted(metrics)), interval)
