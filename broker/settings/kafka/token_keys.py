"""The broker keys of delegation tokens. Declarations only; all are read at start."""

from typing import Final

from moldau.broker.settings.kafka.config_key import ConfigKey, ConfigType, Range

LONG: Final = ConfigType.LONG

TOKEN_KEYS: Final = (
    ConfigKey(
        "delegation.token.secret.key",
        ConfigType.PASSWORD,
        None,
        "The secret that delegation tokens are made with. Empty or not set: there are none. "
        "--secure makes one. With another secret, the tokens that exist cannot be used any more.",
        read_only=True,
        sensitive=True,
    ),
    ConfigKey(
        "delegation.token.max.lifetime.ms",
        LONG,
        "604800000",
        "How long a delegation token can be renewed, and the longest that can be asked for.",
        Range(1),
        read_only=True,
    ),
    ConfigKey(
        "delegation.token.expiry.time.ms",
        LONG,
        "86400000",
        "How long a delegation token can be used before it has to be renewed.",
        Range(1),
        read_only=True,
    ),
    ConfigKey(
        "delegation.token.expiry.check.interval.ms",
        LONG,
        "3600000",
        "How often expired delegation tokens are removed. They cannot be used before that either.",
        Range(1),
        read_only=True,
    ),
    ConfigKey(
        "moldau.delegation.tokens.per.owner",
        ConfigType.INT,
        "10000",
        "How many delegation tokens there may be of one owner: everyone who can log in can make "
        "tokens, and every worker holds them in memory.",
        Range(1),
        read_only=True,
    ),
)
