"""The broker keys of quotas and of limits of connections. Declarations only."""

from typing import Final

from moldau.broker.settings.kafka.config_key import ConfigKey, ConfigType, CountsByAddress, Range

_MAX_INT: Final = "2147483647"
_ROUTERS: Final = "Routers take the value that was set at start."


def _window_keys(prefix: str, what: str) -> tuple[ConfigKey, ConfigKey]:
    return (
        ConfigKey(
            f"{prefix}.num",
            ConfigType.INT,
            "11",
            f"Windows that {what} is measured over.",
            Range(1),
            read_only=True,
        ),
        ConfigKey(
            f"{prefix}.size.seconds",
            ConfigType.INT,
            "1",
            f"Length of a window that {what} is measured over.",
            Range(1),
            read_only=True,
        ),
    )


_CONNECTION_KEYS: Final = (
    ConfigKey(
        "max.connections",
        ConfigType.INT,
        _MAX_INT,
        "Most connections a broker has at a time; further ones are closed. At most a quarter of "
        f"them may be of clients that have not authenticated yet. {_ROUTERS}",
        Range(0),
    ),
    ConfigKey(
        "max.connections.per.ip",
        ConfigType.INT,
        _MAX_INT,
        f"Most connections a broker has from one address; further ones are closed. {_ROUTERS}",
        Range(0),
    ),
    ConfigKey(
        "max.connections.per.ip.overrides",
        ConfigType.STRING,
        "",
        f"Addresses with a limit of their own, as address:count,address:count. {_ROUTERS}",
        CountsByAddress(),
    ),
    ConfigKey(
        "max.connection.creation.rate",
        ConfigType.INT,
        _MAX_INT,
        "Most new connections per second, measured as quotas are; further ones are closed. "
        f"{_ROUTERS}",
        Range(1),
    ),
)

LIMIT_KEYS: Final = (
    *_CONNECTION_KEYS,
    *_window_keys("quota.window", "what clients use of their quotas"),
    *_window_keys("controller.quota.window", "how many partitions clients create and delete"),
)
