"""The keys of client metrics (KIP-714): those of the broker, and of a CLIENT_METRICS resource.

Such a resource is a subscription: which metrics, how often, from which clients.
"""

from collections.abc import Mapping
from typing import Final

from moldau.broker.settings.kafka.config_key import (
    ConfigKey,
    ConfigType,
    InvalidConfig,
    InvalidConfigRequest,
    Range,
)

TELEMETRY_KEYS: Final = (
    ConfigKey(
        "moldau.telemetry.enable",
        ConfigType.BOOLEAN,
        "false",
        "Whether clients are asked for their own metrics (KIP-714), which /metrics and the console "
        "then show. Off: GetTelemetrySubscriptions and PushTelemetry are not advertised.",
        read_only=True,
    ),
    ConfigKey(
        "telemetry.max.bytes",
        ConfigType.INT,
        "1048576",
        "Most bytes of metrics that a client may push at once, compressed or not; never more than "
        "1 MiB.",
        Range(1),
        read_only=True,
    ),
)

CLIENT_METRICS_KEYS: Final = {
    key.name: key
    for key in (
        ConfigKey(
            "interval.ms",
            ConfigType.INT,
            "300000",
            "How often clients push their metrics: 100 ms to one hour.",
        ),
        ConfigKey(
            "match",
            ConfigType.LIST,
            "",
            "The clients it is for, as name=expression: client_id, client_instance_id, "
            "client_software_name, client_software_version, client_source_address or "
            "client_source_port. All must match, wholly; none: all clients.",
        ),
        ConfigKey(
            "metrics",
            ConfigType.LIST,
            "",
            "Prefixes of the metrics that clients push; * for all.",
        ),
    )
}
_SHORTEST, _LONGEST = 100, 3_600_000


def validate_client_metrics(overrides: Mapping[str, str | None]) -> None:
    """Check everything that would be set for a subscription, except for its expressions."""
    for name, value in overrides.items():
        key = CLIENT_METRICS_KEYS.get(name)
        if key is None:
            raise InvalidConfigRequest(f"Unknown client metrics configuration: {name}")
        if value is None:
            raise InvalidConfig(f"Null value not supported for client metrics configs: {name}")
        parsed = key.parse(value)
        if name == "interval.ms" and not _SHORTEST <= int(str(parsed)) <= _LONGEST:
            raise InvalidConfigRequest(
                f"Invalid value {parsed} for {name}, interval must be between {_SHORTEST} and "
                f"{_LONGEST} (1 hour)"
            )
