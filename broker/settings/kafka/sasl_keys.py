"""Kafka's SASL keys, for every listener or, with the prefix `listener.name.<name>.`, for one."""

from typing import Final

from moldau.broker.settings.kafka.config_key import ConfigKey, ConfigType, ListOf, Range, Validator

INT, LONG, STRING, LIST = ConfigType.INT, ConfigType.LONG, ConfigType.STRING, ConfigType.LIST

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


def _key(
    name: str,
    kind: ConfigType,
    default: str | None,
    documentation: str,
    validator: Validator | None = None,
) -> ConfigKey:
    return ConfigKey(name, kind, default, documentation, validator, read_only=True)


SASL_KEYS: Final = (
    _key(
        "sasl.enabled.mechanisms",
        LIST,
        "SCRAM-SHA-256,SCRAM-SHA-512",
        "How clients of listeners with SASL can log in: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, "
        "OAUTHBEARER. PLAIN and SCRAM know the same users.",
        ListOf(MECHANISMS, may_be_empty=False),
    ),
    _key(
        "sasl.server.max.receive.size",
        INT,
        "524288",
        "Largest request of a client that has not logged in.",
        Range(1024),
    ),
    _key(
        "connections.max.reauth.ms",
        LONG,
        "0",
        "After this time a client has to log in again on its connection (KIP-368), or is "
        "disconnected with its next request. 0: never. With the prefix of a listener and a "
        "mechanism (listener.name.<name>.scram-sha-256.) for these.",
        Range(0),
    ),
    _key(
        "connection.failed.authentication.delay.ms",
        INT,
        "100",
        "How long a failed login waits for its answer. Longer after repeated failures of an "
        "address, up to 3 seconds.",
        Range(0, 10_000),
    ),
    _key(
        "sasl.oauthbearer.jwks.endpoint.url",
        STRING,
        None,
        "The keys that sign tokens, as a JSON web key set: a file:// or an https:// (or http://) "
        "address. Read again regularly, and when a token names a key that is not known.",
    ),
    _key(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        LONG,
        "3600000",
        "How often the keys that sign tokens are read again.",
        Range(1000),
    ),
    _key(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        LONG,
        "100",
        "How long to wait after the keys could not be read, the first time.",
        Range(0),
    ),
    _key(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        LONG,
        "10000",
        "How long to wait after the keys could not be read, at most.",
        Range(0),
    ),
    _key(
        "sasl.oauthbearer.expected.audience",
        LIST,
        "",
        "A token has to be for one of these audiences (claim aud). Empty: for any.",
        ListOf(),
    ),
    _key(
        "sasl.oauthbearer.expected.issuer",
        STRING,
        None,
        "A token has to be from this issuer (claim iss). Not set: from any that has the key.",
    ),
    _key(
        "sasl.oauthbearer.clock.skew.seconds",
        INT,
        "30",
        "How far the clock of the issuer may differ from this one.",
        Range(0, 3600),
    ),
    _key(
        "sasl.oauthbearer.sub.claim.name",
        STRING,
        "sub",
        "The claim of a token that is the user's name.",
    ),
    _key(
        "sasl.oauthbearer.scope.claim.name",
        STRING,
        "scope",
        "The claim of a token that has its scopes: a text, or a list of them.",
    ),
)
