"""CONNECTION_LIMITS: applies the limits of connections here, and sends them to the routers."""

from __future__ import annotations

from moldau.broker.access.connection_limiter import ConnectionLimiter
from moldau.broker.access.quotas import Quotas
from moldau.broker.handlers.private.subscribers import Subscribers
from moldau.broker.private.table import CONNECTION_LIMITS
from moldau.broker.security.connection_limits import LimitsInForce
from moldau.broker.settings.kafka import BrokerConfig
from moldau.broker.settings.kafka.resolve import connection_limits


class ConnectionLimitsFeed:
    def __init__(self, limiter: ConnectionLimiter, quotas: Quotas) -> None:
        self._limiter = limiter
        self._quotas = quotas
        self.routers = Subscribers(CONNECTION_LIMITS)

    def use(self, config: BrokerConfig) -> None:
        """The configuration or a quota has changed. Routers do not get what is set for this worker
        alone."""
        rates = self._quotas.table.connection_rates
        self._limiter.counts.use(LimitsInForce(connection_limits(config), rates))
        common = connection_limits(BrokerConfig(config.static, config.dynamic_default))
        self.routers.keep(LimitsInForce(common, rates))
