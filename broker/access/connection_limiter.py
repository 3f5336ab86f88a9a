"""Closes connections that exceed a limit; workers and routers use it.

A refused connection is not read from, and closed a moment later, to slow down clients that
reconnect at once. The number of connections that wait to be closed is bounded.
"""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

from moldau.broker.logging_setup import LimitedLog
from moldau.broker.metrics.access_counters import ConnectionCounters
from moldau.broker.net import descriptors
from moldau.broker.security.connection_limits import (
    CREATION_RATE,
    PER_IP,
    PER_IP_OVERRIDES,
    QUOTA_RATE,
    ConnectionCounts,
)
from moldau.broker.security.quota_rates import Windows
from moldau.broker.settings.processes import ConnectionLimits, Listener

logger = logging.getLogger("moldau.connections")
limited = LimitedLog(logger)

DELAY_S = 0.1  # Kafka's connection.failed.authentication.delay.ms
MAX_DELAYED = 1000


# Labels for the limits of security/connection_limits.py; the label of all others is `max`.
_REASONS = {
    PER_IP: "ip",
    PER_IP_OVERRIDES: "ip",
    CREATION_RATE: "rate",
    QUOTA_RATE: "rate",
}


class _Inside(NamedTuple):
    ip: str
    is_authenticated: bool


class ConnectionLimiter:
    def __init__(self, limits: ConnectionLimits, windows: Windows) -> None:
        self.counts = ConnectionCounts(limits, windows)
        self.counters = ConnectionCounters()
        self._inside: dict[object, _Inside] = {}
        self._delayed = 0
        self._most_delayed = min(MAX_DELAYED, descriptors.reserved() // 4)
        self._loop = asyncio.get_running_loop()

    def admit(
        self, connection: object, transport: asyncio.BaseTransport, ip: str, listener: Listener
    ) -> bool:
        """Count a connection; call `left` when it ends. Returns False if it is refused: it will be
        closed, and must serve nothing."""
        inside = _Inside(ip, not listener.uses_sasl)
        now = self._loop.time() * 1000
        refused_for = self.counts.enter(ip, now, is_authenticated=inside.is_authenticated)
        if refused_for is None:
            self._inside[connection] = inside
            self.counters.accept(listener.name)
            return True
        self._refused(ip, refused_for)
        self._close_later(transport)
        return False

    def refuses(self, ip: str) -> bool:
        """Whether a connection is refused before its TLS handshake."""
        refused_for = self.counts.would_refuse(ip, self._loop.time() * 1000)
        if refused_for is None:
            return False
        self._refused(ip, refused_for)
        return True

    def _refused(self, ip: str, limit: str) -> None:
        self.counters.refuse(_REASONS.get(limit, "max"))
        limited.warning(limit, "a connection from %s is refused: %s", ip, limit)

    def no_descriptor(self) -> None:
        """A connection was closed for lack of descriptors."""
        self.counters.refuse("descriptors")

    def unreadable(self, reason: str) -> None:
        """A connection is closed because its bytes cannot be read."""
        self.counters.refuse(reason)

    def authenticated(self, connection: object) -> None:
        """The connection no longer counts as unauthenticated."""
        inside = self._inside.get(connection)
        if inside is not None and not inside.is_authenticated:
            self._inside[connection] = inside._replace(is_authenticated=True)
            self.counts.authenticate()

    def left(self, connection: object) -> None:
        inside = self._inside.pop(connection, None)
        if inside is not None:
            self.counts.leave(inside.ip, is_authenticated=inside.is_authenticated)

    def _close_later(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        if self._delayed >= self._most_delayed:
            transport.abort()  # type: ignore[attr-defined]
            return
        transport.pause_reading()  # type: ignore[attr-defined]
        self._delayed += 1
        self._loop.call_later(DELAY_S, self._close, transport)

    def _close(self, transport: asyncio.BaseTransport) -> None:
        self._delayed -= 1
        transport.close()
