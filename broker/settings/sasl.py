"""The SASL settings of a listener, which every process gets."""

from collections.abc import Callable

import msgspec

TOKENS = "OAUTHBEARER"


class TokenSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of OAUTHBEARER."""

    keys_url: str
    refresh_ms: int = 3_600_000
    retry_ms: int = 100
    retry_max_ms: int = 10_000
    issuer: str | None = None
    audience: list[str] = []
    clock_skew_s: int = 30
    sub_claim: str = "sub"
    scope_claim: str = "scope"


class SaslSettings(msgspec.Struct, frozen=True, kw_only=True):
    mechanisms: list[str]
    max_receive_bytes: int = 524_288
    failure_delay_ms: int = 100
    max_session_ms: dict[str, int] = {}  # by mechanism; absent or 0 means no limit
    tokens: TokenSettings | None = None


def read_sasl(value: Callable[[str], str | None]) -> SaslSettings:
    """Read the settings. `value` returns the value of a key for the listener, possibly prefixed
    with a mechanism (`scram-sha-256.connections.max.reauth.ms`). Raises ValueError."""
    mechanisms = (value("sasl.enabled.mechanisms") or "").split(",")

    def for_mechanism(mechanism: str, key: str) -> str | None:
        own = value(f"{mechanism.lower()}.{key}")
        return value(key) if own is None else own

    def of_tokens(key: str) -> str | None:
        return for_mechanism(TOKENS, f"sasl.oauthbearer.{key}") or None

    tokens = None
    if TOKENS in mechanisms:
        url = of_tokens("jwks.endpoint.url")
        if url is None or not url.startswith(("file://", "http://", "https://")):
            raise ValueError(
                "OAUTHBEARER needs the keys that sign tokens: set "
                "sasl.oauthbearer.jwks.endpoint.url to a file://, https:// or http:// address"
            )
        tokens = TokenSettings(
            keys_url=url,
            refresh_ms=int(of_tokens("jwks.endpoint.refresh.ms") or 0),
            retry_ms=int(of_tokens("jwks.endpoint.retry.backoff.ms") or 0),
            retry_max_ms=int(of_tokens("jwks.endpoint.retry.backoff.max.ms") or 0),
            issuer=of_tokens("expected.issuer"),
            audience=[each for each in (of_tokens("expected.audience") or "").split(",") if each],
            clock_skew_s=int(of_tokens("clock.skew.seconds") or 0),
            sub_claim=of_tokens("sub.claim.name") or "sub",
            scope_claim=of_tokens("scope.claim.name") or "scope",
        )
    return SaslSettings(
        mechanisms=mechanisms,
        max_receive_bytes=int(value("sasl.server.max.receive.size") or 0),
        failure_delay_ms=int(value("connection.failed.authentication.delay.ms") or 0),
        max_session_ms={
            each: int(for_mechanism(each, "connections.max.reauth.ms") or 0) for each in mechanisms
        },
        tokens=tokens,
    )
