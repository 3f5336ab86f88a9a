"""How many connections there may be, and how fast they may come. Pure: takes `now`, in ms.

What counts are connections of one process that came in over TCP. A refused one is not counted, not
even in the rate it was refused for.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from moldau.broker.security.quota_entities import DEFAULT
from moldau.broker.security.quota_rates import Rate, Windows
from moldau.broker.settings.processes import UNLIMITED, ConnectionLimits

MAX_RATES = 10_000  # addresses whose rate is measured at a time; further ones share one
REST = ""
# Of max.connections: a client that never authenticates must not keep out those that do.
UNAUTHENTICATED_SHARE = 4
# What a connection is refused for.
PER_IP, PER_IP_OVERRIDES = "max.connections.per.ip", "max.connections.per.ip.overrides"
CREATION_RATE = "max.connection.creation.rate"
QUOTA_RATE = "the quota connection_creation_rate"


class LimitsInForce(msgspec.Struct, frozen=True):
    """What is configured for all processes of the broker, and the quotas of addresses."""

    limits: ConnectionLimits
    rates: dict[str, float] = {}  # connection_creation_rate; DEFAULT: that of all other addresses

    def rate_of(self, ip: str) -> float | None:
        return self.rates.get(ip, self.rates.get(DEFAULT))


def no_rate(ip: str) -> float | None:
    """There is no quota for an address."""
    return None


class ConnectionCounts:
    def __init__(self, limits: ConnectionLimits, windows: Windows) -> None:
        self.limits = limits
        self.most = UNLIMITED  # whatever is configured: what there are descriptors for
        self.rate_of: Callable[[str], float | None] = no_rate
        self._windows = windows
        self._total = 0
        self._unauthenticated = 0
        self._by_ip: dict[str, int] = {}
        self._rate = Rate(windows)
        self._rates: dict[str, Rate] = {}

    def use(self, given: LimitsInForce) -> None:
        """They count for connections that come from now on."""
        self.limits, self.rate_of = given.limits, given.rate_of

    def enter(self, ip: str, now: float, *, is_authenticated: bool) -> str | None:
        """Count a connection; or the name of the limit for which it is refused."""
        refused_for = self._full(ip, is_authenticated) or self._too_fast(ip, now)
        if refused_for is None:
            self._total += 1
            self._by_ip[ip] = self._by_ip.get(ip, 0) + 1
            if not is_authenticated:
                self._unauthenticated += 1
        return refused_for

    def would_refuse(self, ip: str, now: float) -> str | None:
        """Whether a connection that came now would be refused: before its handshake, which costs
        more than everything else. Counts nothing."""
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
        """The broker's rate, then that of the address."""
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
