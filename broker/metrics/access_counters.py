"""Counters of accepted and refused connections, logins and denials.

The counters are plain integers; families of samples are made of them on request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from moldau.broker.metrics.document import Family, Kind, Sample

SUCCESS, FAILURE = "success", "failure"
NO_COUNTS: Mapping[str, int] = {}


class ConnectionCounters:
    """The counters of a worker or a router."""

    __slots__ = ("accepted", "refused")

    def __init__(self) -> None:
        self.accepted: dict[str, int] = {}  # by listener
        self.refused: dict[str, int] = {}  # by reason

    def accept(self, listener: str) -> None:
        self.accepted[listener] = self.accepted.get(listener, 0) + 1

    def refuse(self, reason: str) -> None:
        self.refused[reason] = self.refused.get(reason, 0) + 1

    def families(self, failed_handshakes: int, expiries: Iterable[tuple[str, int]]) -> list[Family]:
        """`expiries`: by listener, when its certificate expires, in seconds since 1970."""
        refused = dict(self.refused)
        if failed_handshakes:
            refused["tls"] = failed_handshakes
        return [
            Family("moldau_connections_total", Kind.COUNTER, "Connections of clients accepted.",
                   ("listener",), [Sample((name,), n) for name, n in self.accepted.items()],
                   by_role=True),
            Family("moldau_connections_refused_total", Kind.COUNTER,
                   "Connections closed for a limit, a failed handshake or no Kafka protocol.",
                   ("reason",), [Sample((why,), count) for why, count in refused.items()],
                   by_role=True),
            Family("moldau_tls_certificate_expires_at_timestamp_seconds", Kind.GAUGE,
                   "When the certificate of a listener expires.", ("listener",),
                   [Sample((name,), seconds) for name, seconds in expiries], by_role=True),
        ]  # fmt: skip


class AccessCounters:
    """The logins and denials of a worker."""

    __slots__ = ("denials", "logins")

    def __init__(self) -> None:
        self.logins: dict[tuple[str, str], int] = {}  # by mechanism and result
        self.denials: dict[tuple[str, str], int] = {}  # by resource and operation

    def login(self, mechanism: str, result: str) -> None:
        key = mechanism, result
        self.logins[key] = self.logins.get(key, 0) + 1

    def denied(self, resource: str, operation: str) -> None:
        key = resource, operation
        self.denials[key] = self.denials.get(key, 0) + 1

    def families(self, throttled_ms: Mapping[str, int] = NO_COUNTS) -> list[Family]:
        """`throttled_ms`: by quota, such as producer_byte_rate."""
        return [
            Family("moldau_authentications_total", Kind.COUNTER, "SASL logins.",
                   ("mechanism", "result"),
                   [Sample(key, count) for key, count in self.logins.items()]),
            Family("moldau_authorization_denials_total", Kind.COUNTER,
                   "What clients asked for and no ACL allows, or one denies.",
                   ("resource", "operation"),
                   [Sample(key, count) for key, count in self.denials.items()]),
            Family("moldau_quota_throttle_seconds_total", Kind.COUNTER,
                   "How long clients were to wait because of a quota.", ("quota",),
                   [Sample((quota,), ms / 1000) for quota, ms in throttled_ms.items()]),
        ]  # fmt: skip
