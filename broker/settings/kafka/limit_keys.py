"""The broker keys of quotas. Declarations only."""

from typing import Final

from broker.settings.kafka.config_key import ConfigKey, ConfigType, Range


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


LIMIT_KEYS: Final = (
    *_window_keys("quota.window", "what clients use of their quotas"),
    *_window_keys("controller.quota.window", "how many partitions clients create and delete"),
)
