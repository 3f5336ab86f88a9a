"""Limits the number of connections and the rate at which they are created. Pure: takes `now` in ms.

Only connections of this process that came in over TCP count. A refused connection is not counted,
not even in the rate for which it was refused.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from moldau.broker.security.quota_entities import DEFAULT
from moldau.broker.security.quota_rates import Rate, Windows
from moldau.broker.settings.processes import UNLIMITED, ConnectionLimits

MAX_RATES = 10_000  # addresses whose rate is measured at a time; further ones share one
REST = ""
# The share of max.connections that unauthenticated clients may use: they must not keep others out.
UNAUTHENTICATED_SHARE = 4
# The reasons for which a connection is refused.
PER_IP, PER_IP_OVERRIDES = "max.connections.per.ip", "max.connections.per.ip.overrides"
CREATION_RATE = "max.connection.creation.rate"
QUOTA_RATE = "the quota connection_creation_rate"


class LimitsInForce(msgspec.Struct, frozen=True):
    """The limits configured for all processes of the broker, and the quotas of addresses."""

    limits: ConnectionLimits
    rates: dict[str, float] = {}  # connection_creation_rate; DEFAULT is for all other addresses

    def rate_of(self, ip: str) -> float | None:
        return self.rates.get(ip, self.rates.get(DEFAULT))


def no_rate(ip: str) -> float | None:
    """Return no quota for any address."""
    return None


class ConnectionCounts:
    def __init__(self, limits: ConnectionLimits, windows: Windows) -> None:
        self.limits = limits
        self.most = UNLIMITED  # whatever is configured: the available file descriptors
        self.rate_of: Callable[[str], float | None] = no_rate
        self._windows = windows
        self._total = 0
        self._unauthenticated = 0
        self._by_ip: dict[str, int] = {}
        self._rate = Rate(windows)
        self._rates: dict[str, Rate] = {}

    def use(self, given: LimitsInForce) -> None:
        """Use other limits for new connections."""
        self.limits, self.rate_of = given.limits, given.rate_of

    def enter(self, ip: str, now: float, *, is_authenticated: bool) -> str | None:
        """Count a connection, or return the name of the limit for which it is refused."""
        refused_for = self._full(ip, is_authenticated) or self._too_fast(ip, now)
        if refused_for is None:
            self._total += 1
            self._by_ip[ip] = self._by_ip.get(ip, 0) + 1
            if not is_authenticated:
                self._unauthenticated += 1
        return refused_for

    def would_refuse(self, ip: str, now: float) -> str | None:
        """Check whether a new connection would be refused, before its handshake, which costs more
        than everything else. It is not counted."""
        return self._full(ip, True) or self._too_fast(ip, now, is_trial=True)

    def authenticate(self) -> None:
        self._unauthenticated -= 1

    def leave(self, ip: str, *, is_authenticated: bool) -> None:
        self._total -= 1
        left = self._by_ip[ip] - 1
        if left:
            self._by_ip[ip] = left
        else:
            del self._by_ip[ip]
        if not is_authenticated:
            self._unauthenticated -= 1

    def _full(self, ip: str, is_authenticated: bool) -> str | None:
        limits = self.limits
        total = min(limits.total, self.most)
        if self._total >= total:
            return "max.connections"
        if not is_authenticated and self._unauthenticated >= max(total // UNAUTHENTICATED_SHARE, 1):
            return "max.connections, a quarter of it for clients that have not authenticated"
        own = limits.overrides.get(ip)
        if self._by_ip.get(ip, 0) >= (limits.per_ip if own is None else own):
            return PER_IP if own is None else PER_IP_OVERRIDES
        return None

    def _too_fast(self, ip: str, now: float, *, is_trial: bool = False) -> str | None:
        """Check the broker's rate, then that of the address."""
        taken: list[Rate] = []
        refused_for = None
        for rate, limit, name in (
            (self._rate, float(self.limits.creation_rate), CREATION_RATE),
            (None, self.rate_of(ip), QUOTA_RATE),
        ):
            if limit is None or limit >= UNLIMITED:
                continue
            measured = rate or self._rate_for(ip, now)
            measured.record(1, now)
            taken.append(measured)
            if measured.throttle_ms(limit, now) > 0:
                refused_for = name
                break
        if refused_for is not None or is_trial:
            for each in taken:
                each.record(-1, now)
        return refused_for

    def _rate_for(self, ip: str, now: float) -> Rate:
        rate = self._rates.get(ip)
        if rate is None:
            if len(self._rates) >= MAX_RATES:
                self._rates = {k: v for k, v in self._rates.items() if not v.is_unused(now)}
            name = ip if len(self._rates) < MAX_RATES else REST
            rate = self._rates.setdefault(name, Rate(self._windows))
        return rate

    @property
    def total(self) -> int:
        return self._total
