r"""OAUTHBEARER, the server's side (RFC 7628): a signed JSON web token instead of a password.

    client                                                   server
    n,,\x01auth=Bearer <token>\x01\x01               ──▶
                                                      ◀──    nothing, it is valid; or
                                                      ◀──    {"status":"invalid_token"}
    \x01                                              ──▶    the login has failed

A token is valid when one of the known keys has signed it, with an algorithm of public keys, and
issuer, audience and times are as configured. There is no unsecured mode.

PyJWT and the cryptography behind it take long to import, so that is left to the first key set:
most brokers have none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from moldau.broker.security.sasl import MAX_NAME, Accepted, Challenge, Rejected, Step

MAX_TOKEN = 65_536
MAX_KEYS_TRIED = 16  # for a token that does not name its key
# Signatures by public keys. Never "none", and never HMAC: its key would be a public one.
ALGORITHMS = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)
_KEY_TYPES = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
_INVALID_TOKEN = b'{"status":"invalid_token"}'
_SEPARATOR = "\x01"
_HEADER = re.compile(r"(?:n|y),(?:a=([^,]*))?,")
_KEY = re.compile(r"[A-Za-z]+")
_VALUE = re.compile(r"[\x21-\x7E \t\r\n]*")
_BEARER = re.compile(r"bearer +([A-Za-z0-9\-._~+/]+=*)", re.IGNORECASE)
_LAST_SECOND = 1 << 40  # a time beyond it is a mistake


class InvalidToken(ValueError):
    """The token is invalid. The text is for the log."""


class InvalidKeySet(ValueError):
    """This is not a JSON web key set, or no key in it can be used."""


class TokenRules(NamedTuple):
    """The requirements for a token, under Kafka's names (sasl.oauthbearer.…)."""

    expected_issuer: str | None = None
    expected_audience: frozenset[str] = frozenset()
    clock_skew_s: int = 30
    sub_claim_name: str = "sub"
    scope_claim_name: str = "scope"


class SigningKey(NamedTuple):
    """One key of a JSON web key set."""

    key_id: str | None
    key_type: str  # RSA, EC, OKP
    algorithm: str | None  # the only algorithm it is for
    key: Any  # an object of `cryptography`


class SigningKeys(Protocol):
    def named(self, key_id: str | None) -> Sequence[SigningKey]:
        """Return the keys with this id, or all keys for None."""


def read_key_set(document: Any) -> list[SigningKey]:
    """Return the usable keys of a JSON web key set (RFC 7517). Raises InvalidKeySet."""
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise InvalidKeySet("not a JSON web key set: there is no list `keys`")
    keys = [key for each in listed if (key := _signing_key(each)) is not None]
    if not keys:
        raise InvalidKeySet("no key in it can check signatures (RSA, EC or OKP)")
    return keys


def _signing_key(fields: Any) -> SigningKey | None:
    """Return None for a key that is a shared secret, not for signatures, or of an unknown kind."""
    if not isinstance(fields, dict) or fields.get("kty") not in _KEY_TYPES.values():
        return None
    import jwt

    algorithm, key_id = fields.get("alg"), fields.get("kid")
    if fields.get("use", "sig") != "sig" or algorithm not in {None, *ALGORITHMS}:
        return None
    try:
        # PyJWT would guess an algorithm; a key without one is used for all of its type.
        found = jwt.PyJWK(fields)
    except Exception:  # another party wrote the document, and the library raises many exceptions
        return None
    return SigningKey(key_id, fields["kty"], algorithm, found.key)


class OAuthBearerConversation:
    def __init__(self, rules: TokenRules, keys: SigningKeys) -> None:
        self._rules = rules
        self._keys = keys
        self._refusal: Rejected | None = None

    def receive(self, token: bytes, now: int) -> Step:
        if self._refusal is not None:
            return self._refusal  # whatever the client answers
        try:
            authzid, bearer = read_initial_message(token)
        except ValueError as fault:
            return Rejected(f"malformed: {fault}")
        try:
            user, expires_at = self._validate(bearer, now)
        except ValueError as fault:
            return self._refuse(str(fault))
        if authzid not in (None, "", user):
            return self._refuse("the authorization id is not the user", user)
        return Accepted(user, expires_at=expires_at)

    def _refuse(self, reason: str, user: str | None = None) -> Step:
        self._refusal = Rejected(reason, user, _INVALID_TOKEN.decode())
        return Challenge(_INVALID_TOKEN)

    def _validate(self, token: str, now: int) -> tuple[str, int]:
        """Return the user and the end of the session. Raises InvalidToken."""
        claims = self._verified(token)
        rules, second = self._rules, now / 1000
        expires = _time(claims, "exp")
        if second >= expires + rules.clock_skew_s:
            raise InvalidToken("the token has expired")
        if _time(claims, "iat") > second + rules.clock_skew_s:
            raise InvalidToken("the token was issued in the future")
        if "nbf" in claims and _time(claims, "nbf") > second + rules.clock_skew_s:
            raise InvalidToken("the token is not valid yet")
        if rules.expected_issuer is not None and claims.get("iss") != rules.expected_issuer:
            raise InvalidToken("the token has another issuer")
        if rules.expected_audience.isdisjoint(_texts(claims, "aud")) and rules.expected_audience:
            raise InvalidToken("the token is for another audience")
        _texts(claims, rules.scope_claim_name)
        user = claims.get(rules.sub_claim_name)
        if not isinstance(user, str) or not 0 < len(user.strip()) <= MAX_NAME or "\0" in user:
            raise InvalidToken(f"claim {rules.sub_claim_name} is no name")
        # A token that is accepted within the clock tolerance gets a session that ends with the
        # tolerance.
        ends = expires if expires > second else expires + rules.clock_skew_s
        return user, int(ends * 1000)

    def _verified(self, token: str) -> dict[str, Any]:
        if len(token) > MAX_TOKEN:
            raise InvalidToken("the token is too long")
        import jwt

        try:
            header = jwt.get_unverified_header(token)
        except Exception as fault:  # any error in reading it: this is not a token
            raise InvalidToken(f"the token cannot be read: {fault}") from None
        algorithm, key_id = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise InvalidToken("the token is not signed with an algorithm of public keys")
        if not isinstance(key_id, str | None):
            raise InvalidToken("the token has no proper key id")
        candidates = [
            key
            for key in self._keys.named(key_id)
            if key.key_type == _KEY_TYPES[algorithm[:2]] and key.algorithm in (None, algorithm)
        ]
        if not candidates:
            raise InvalidToken("the token's key is not known")
        # Times and names are checked below, with the caller's clock.
        options = {"verify_signature": True, "require": []}
        for what in ("exp", "nbf", "iat", "aud", "iss", "sub", "jti"):
            options[f"verify_{what}"] = False
        reason = ""
        for key in candidates[:MAX_KEYS_TRIED]:
            try:
                claims: dict[str, Any] = jwt.decode(
                    token,
                    key.key,
                    algorithms=[algorithm],
                    options=options,  # type: ignore[arg-type]
                )
            except Exception as fault:  # as above
                reason = str(fault)
            else:
                return claims
        raise InvalidToken(f"the token's signature is not valid: {reason}")


def read_initial_message(token: bytes) -> tuple[str | None, str]:
    """Return the authorization id and the bearer token. Raises ValueError."""
    text = token.decode()
    header = _HEADER.match(text)
    if header is None:
        raise InvalidToken("no header, or channel binding")
    rest = text[header.end() :]
    if not (len(rest) >= 2 and rest.startswith(_SEPARATOR) and rest.endswith(_SEPARATOR)):
        raise InvalidToken("not enclosed in separators")
    pairs: dict[str, str] = {}
    for pair in rest[1:-1].removesuffix(_SEPARATOR).split(_SEPARATOR):
        key, _, value = pair.partition("=")
        if not (_KEY.fullmatch(key) and _VALUE.fullmatch(value)) or key in pairs:
            raise InvalidToken("a pair of key and value that cannot be read")
        pairs[key] = value
    bearer = _BEARER.fullmatch(pairs.get("auth", ""))
    if bearer is None:
        raise InvalidToken("no bearer token")
    authzid = header.group(1)
    if authzid is not None:
        authzid = authzid.replace("=2C", ",").replace("=3D", "=")
    return authzid, bearer.group(1)


def _time(claims: dict[str, Any], name: str) -> float:
    value: Any = claims.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= _LAST_SECOND:  # NaN is not in the range
        raise InvalidToken(f"claim {name} is no time")
    return float(value)


def _texts(claims: dict[str, Any], name: str) -> list[str]:
    """Return a claim that is a text or a list of texts; empty if it is absent."""
    value = claims.get(name, [])
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise InvalidToken(f"claim {name} is neither a text nor a list of texts")
    return texts
