"""The limits of connections that a broker's configuration sets."""

from moldau.broker.settings.kafka.config_key import CountsByAddress
from moldau.broker.settings.kafka.resolve import BrokerConfig
from moldau.broker.settings.processes import ConnectionLimits


def connection_limits(config: BrokerConfig) -> ConnectionLimits:
    return ConnectionLimits(
        config.get_int("max.connections"),
        config.get_int("max.connections.per.ip"),
        CountsByAddress.read(config.get("max.connections.per.ip.overrides")),
        config.get_int("max.connection.creation.rate"),
    )
