"""The client's side of SCRAM (RFC 5802, RFC 7677), without I/O.

The password never leaves this side: the server learns that it is known, and has to prove in its
last message that it holds the keys derived from it. `salted_password` is also what `moldau users`
sends to a broker to keep.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import hmac
import secrets

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
# RFC 7677 asks for 4096 at least. The upper bound is against servers that would keep us busy.
MIN_ITERATIONS, MAX_ITERATIONS = 4096, 1_000_000
NO_CHANNEL_BINDING = "n,,"


class ScramError(ValueError):
    """The server does not follow the protocol, or does not know the password either."""


@functools.lru_cache(maxsize=16)
def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """Takes milliseconds: remembered, for clients that connect again."""
    # As Kafka and librdkafka do it: the bytes of the password, without SASLprep.
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)


class ScramClient:
    """One login: `first`, then `final` with the server's answer, then `verify` with the next."""

    def __init__(
        self,
        mechanism: str,
        username: str,
        password: str,
        nonce: str | None = None,
        *,
        is_token: bool = False,
    ) -> None:
        """`is_token`: the name is the id of a delegation token, the password its HMAC."""
        self._mechanism = mechanism
        self._hash = HASHES[mechanism]
        self._password = password
        self._nonce = nonce or secrets.token_urlsafe(24)
        name = username.replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={name},r={self._nonce}" + (",tokenauth=true" if is_token else "")
        self._server_signature = b""

    def first(self) -> bytes:
        return (NO_CHANNEL_BINDING + self._first_bare).encode()

    def final(self, server_first: bytes) -> bytes:
        """Raises ScramError."""
        text, fields = _fields(server_first)
        nonce, salt, iterations = _challenge(fields)
        # Ours comes first in it: else it answers somebody else's login.
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise ScramError("the server's nonce does not continue ours")
        salted = salted_password(self._mechanism, self._password, salt, iterations)
        client_key = self._hmac(salted, b"Client Key")
        stored_key = hashlib.new(self._hash, client_key).digest()
        binding = base64.b64encode(NO_CHANNEL_BINDING.encode()).decode()
        without_proof = f"c={binding},r={nonce}"
        signed = f"{self._first_bare},{text},{without_proof}".encode()
        signature = self._hmac(stored_key, signed)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._server_signature = self._hmac(self._hmac(salted, b"Server Key"), signed)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def verify(self, server_final: bytes) -> None:
        """Raises ScramError unless the server knows the password too."""
        _, fields = _fields(server_final)
        if "e" in fields:
            raise ScramError(f"the server refuses: {fields['e']}")
        signature = _decoded(fields.get("v", ""))
        if not self._server_signature or not hmac.compare_digest(signature, self._server_signature):
            raise ScramError(
                "the server does not know the password: it is not the broker it claims to be"
            )

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash)


def _fields(message: bytes) -> tuple[str, dict[str, str]]:
    try:
        text = message.decode()
    except UnicodeDecodeError:
        raise ScramError("the server's message is not text") from None
    pairs = [field.partition("=") for field in text.split(",")]
    if any(len(name) != 1 or not equals for name, equals, _ in pairs):
        raise ScramError("the server's message is not one of SCRAM")
    return text, {name: value for name, _, value in pairs}


def _challenge(fields: dict[str, str]) -> tuple[str, bytes, int]:
    if "m" in fields:
        raise ScramError("the server requires an extension that is unknown here")
    if "e" in fields:
        raise ScramError(f"the server refuses: {fields['e']}")
    count = fields.get("i", "")
    if not count.isascii() or not count.isdigit() or len(count) > 9 or not fields.get("r"):
        raise ScramError("the server's first message lacks a nonce or iterations")
    iterations = int(count)
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise ScramError(
            f"the server asks for {iterations} iterations; "
            f"{MIN_ITERATIONS} to {MAX_ITERATIONS} are accepted"
        )
    salt = _decoded(fields.get("s", ""))
    if not salt:
        raise ScramError("the server's first message lacks a salt")
    return fields["r"], salt, iterations


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ScramError("the server's message is not valid base64") from None
