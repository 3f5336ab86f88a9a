"""Delegation tokens (KIP-48, KIP-373): their contents, the rights to them, and their lifetime.

A token stands for its owner for a while. A client logs in with it by SCRAM: the user name is the
token's id, the password is its HMAC in base64, and the extensions of the first message include
`tokenauth=true`. The HMAC follows from the id and the secret key of the cluster, so it is not
stored. As for passwords, only data to check it is stored.

Times are milliseconds since 1970. A token may be used until `expires_at`. It can be renewed until
then, and never beyond `max_at`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import uuid
from collections.abc import Iterable

import msgspec

from moldau.broker.errors import ErrorCode, KafkaError
from moldau.broker.security.identity import ANONYMOUS, USER, Identity
from moldau.broker.security.sasl import MAX_NAME, Mechanism
from moldau.broker.security.scram import (
    ScramCredential,
    credential_from,
    hash_name,
    salted_password,
)

MECHANISMS = (Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512)
# The password is a random number of 512 bits, which more iterations would not protect any better.
ITERATIONS = 4096
SALT_BYTES = 24
# Kafka has no such limits. A user without any rights can create tokens, and workers hold them all.
MAX_RENEWERS = 100
MAX_TIME = (1 << 63) - 1
USER_TYPE = USER.removesuffix(":")


class Token(msgspec.Struct, frozen=True):
    """A token as it is stored under its id. Principals are written as `User:alice`."""

    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_at: int
    expires_at: int
    max_at: int
    # Identifies the secret key of its HMAC (`TokenKey.fingerprint`).
    key: bytes
    # Stored key and server key, by mechanism; salt and iterations follow from the id.
    credentials: dict[Mechanism, tuple[bytes, bytes]]

    def is_expired(self, now: int) -> bool:
        """Check expiry for requests, where Kafka lets the last millisecond pass."""
        return self.expires_at < now or self.max_at < now

    def may_log_in(self, now: int) -> bool:
        return now < min(self.expires_at, self.max_at)

    def may_be_renewed_by(self, principal: str) -> bool:
        return principal == self.owner or principal in self.renewers

    def concerns(self, principal: str) -> bool:
        """True for those who see the token without any ACL."""
        return principal == self.requester or self.may_be_renewed_by(principal)


class Lifetimes(msgspec.Struct, frozen=True):
    """`delegation.token.max.lifetime.ms`, `delegation.token.expiry.time.ms`."""

    max_ms: int
    renew_ms: int


# --- the secret key ---


class TokenKey:
    """The secret key of the cluster, `delegation.token.secret.key`."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()
        self.fingerprint = hmac.digest(self._secret, b"moldau token key", "sha256")[:8]

    def hmac(self, token_id: str) -> bytes:
        """Return the HMAC of the token. Anyone who has it can log in."""
        return hmac.digest(self._secret, token_id.encode(), "sha512")

    def salt(self, mechanism: Mechanism, token_id: str) -> bytes:
        """Return a salt that is the same before, while and after a token with this id exists, so
        that a failed login does not show which of these applied."""
        text = f"salt {mechanism} {token_id}".encode()
        return hmac.digest(self._secret, text, "sha512")[:SALT_BYTES]

    def credentials(self, token_id: str) -> dict[Mechanism, tuple[bytes, bytes]]:
        """Derive the credentials. This takes milliseconds, without the interpreter lock."""
        password = password_of(self.hmac(token_id))
        made = {}
        for mechanism in MECHANISMS:
            salt = self.salt(mechanism, token_id)
            salted = salted_password(mechanism, password, salt, ITERATIONS)
            credential = credential_from(mechanism, salt, ITERATIONS, salted)
            made[mechanism] = (credential.stored_key, credential.server_key)
        return made

    def credential(
        self, mechanism: Mechanism, token_id: str, token: Token | None
    ) -> ScramCredential:
        """Return a credential for any id. No password matches that of a nonexistent token."""
        salt = self.salt(mechanism, token_id)
        keys = None if token is None else token.credentials.get(mechanism)
        if keys is None:
            # No password has this key: finding one would mean inverting the hash.
            seed = hmac.digest(self._secret, f"none {mechanism} {token_id}".encode(), "sha512")
            size = hashlib.new(hash_name(mechanism)).digest_size
            keys = (seed[:size], seed[:size])
        return ScramCredential(salt, ITERATIONS, *keys)


def password_of(token_hmac: bytes) -> str:
    return base64.b64encode(token_hmac).decode()


def new_id() -> str:
    """Return an id like Kafka's: 22 characters that do not begin with a dash, which tools would
    take for an option."""
    while True:
        made = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        if not made.startswith("-"):
            return made


# --- rights ---


def check_allowed(identity: Identity) -> None:
    """Refuse clients that have not authenticated, or did so with a token: it must not create
    others. Raises KafkaError."""
    is_known = bool(identity.mechanism) or identity.principal != ANONYMOUS
    if identity.token or not (is_known or identity.is_trusted):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)


def owner_of(identity: Identity, kind: str | None, name: str | None) -> str:
    """Return the owner of a new token: without a name, the requester."""
    return f"{kind or ''}:{name}" if name else identity.principal


def split_principal(principal: str) -> tuple[str, str]:
    kind, _, name = principal.partition(":")
    return kind, name


def checked_principals(owner: str, renewers: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return the renewers. Raises KafkaError.

    Unlike in Kafka, the owner has to be a user as well: a token of `Group:x` would log in as
    `User:x`.
    """
    found = list(renewers)
    if not owner.startswith(USER) or any(kind != USER_TYPE for kind, _ in found):
        raise KafkaError(ErrorCode.INVALID_PRINCIPAL_TYPE)
    names = [owner.removeprefix(USER), *(name for _, name in found)]
    if len(found) > MAX_RENEWERS or any(len(name) > MAX_NAME or "\0" in name for name in names):
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    return tuple(dict.fromkeys(USER + name for _, name in found))


# --- lifetime ---


def first_times(lifetimes: Lifetimes, max_lifetime_ms: int, now: int) -> tuple[int, int]:
    """Return when a new token expires unless it is renewed, and when it expires at the latest."""
    longest = lifetimes.max_ms
    if max_lifetime_ms > 0:
        longest = min(longest, max_lifetime_ms)
    max_at = _after(now, longest)
    return min(max_at, _after(now, lifetimes.renew_ms)), max_at


def renewed(
    token: Token, identity: Identity, lifetimes: Lifetimes, period_ms: int, now: int
) -> Token:
    """Return the new expiry, at most the configured period from now. It may be earlier than before,
    as in Kafka. Raises KafkaError."""
    _check_not_expired(token, now)
    _check_renewer(token, identity)
    period = lifetimes.renew_ms
    if period_ms > 0:
        period = min(period, period_ms)
    return _until(token, _after(now, period))


def expired(token: Token, identity: Identity, period_ms: int, now: int) -> Token | None:
    """Return the new expiry, or None to remove the token at once. Raises KafkaError."""
    _check_renewer(token, identity)
    if period_ms < 0:
        return None
    _check_not_expired(token, now)
    return _until(token, _after(now, period_ms))


def _check_not_expired(token: Token, now: int) -> None:
    if token.is_expired(now):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_EXPIRED)


def _check_renewer(token: Token, identity: Identity) -> None:
    """The operator may always do this, and must be able to revoke access."""
    if not (identity.is_trusted or token.may_be_renewed_by(identity.principal)):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)


def _until(token: Token, expires_at: int) -> Token:
    return msgspec.structs.replace(token, expires_at=min(token.max_at, expires_at))


def _after(now: int, period_ms: int) -> int:
    return min(now + period_ms, MAX_TIME)
