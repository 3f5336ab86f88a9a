"""The configuration that a worker starts with, before changes at runtime."""

from __future__ import annotations

from moldau.broker.settings.kafka import BrokerConfig
from moldau.broker.settings.kafka.config_key import CountsByAddress
from moldau.broker.settings.processes import UNLIMITED, ConnectionLimits, WorkerSettings


def static_config(
    settings: WorkerSettings, log_dirs: str, most_connections: int = UNLIMITED
) -> BrokerConfig:
    """The operator's broker configs, and those that follow from the process settings.
    `most_connections`: what there are descriptors for."""
    configured = settings.broker_configs.get("max.connections", UNLIMITED)
    node = str(settings.index)
    served = settings.listeners
    advertised = [
        f"{each.listener.name}://{own.host}:{own.port}"
        for each in served
        for own in [each.brokers[settings.index if len(each.brokers) > 1 else 0]]
    ]
    return BrokerConfig(
        {
            **settings.broker_configs,
            "max.connections": str(min(int(configured), most_connections)),
            "node.id": node,
            "broker.id": node,
            "listeners": ",".join(
                f"{each.listener.name}://{each.listener.host}:{each.port}" for each in served
            ),
            "advertised.listeners": ",".join(advertised),
            "listener.security.protocol.map": ",".join(
                f"{each.listener.name}:{each.listener.protocol}" for each in served
            ),
            "log.dirs": log_dirs,
            "socket.request.max.bytes": str(settings.max_request_bytes),
        }
    )


def connection_limits(config: BrokerConfig) -> ConnectionLimits:
    """The connection limits that a broker configuration sets."""
    return ConnectionLimits(
        config.get_int("max.connections"),
        config.get_int("max.connections.per.ip"),
        CountsByAddress.read(config.get("max.connections.per.ip.overrides")),
        config.get_int("max.connection.creation.rate"),
    )
