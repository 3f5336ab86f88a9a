"""SCRAM-SHA-256 and SCRAM-SHA-512, the server's side (RFC 5802, RFC 7677).

    client                                          server
    n,,n=alice,r=<client nonce>               ──▶
                                              ◀──   r=<client nonce><our nonce>,s=<salt>,i=<rounds>
    c=<header>,r=<both nonces>,p=<proof>      ──▶
                                              ◀──   v=<signature>

Unknown users are answered like known ones, with a credential that no password has, and fail in the
second step as with a wrong password: whether a user exists cannot be found out.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from moldau.broker.security.identity import NEVER
from moldau.broker.security.sasl import MAX_NAME, Accepted, Challenge, Mechanism, Rejected, Step

MIN_ITERATIONS, MAX_ITERATIONS = 4096, 16384
MAX_NONCE = 1024  # characters

# The numbers of mechanisms in Kafka's messages.
NUMBERS = {Mechanism.SCRAM_SHA_256: 1, Mechanism.SCRAM_SHA_512: 2}
MECHANISMS = {number: mechanism for mechanism, number in NUMBERS.items()}

_HASHES = {Mechanism.SCRAM_SHA_256: "sha256", Mechanism.SCRAM_SHA_512: "sha512"}
# The characters of salts: digits of a number, as in Kafka's own tools, and other texts.
_BASE_36 = b"0123456789abcdefghijklmnopqrstuvwxyz"
_KAFKA_SALT_SIZE = 25
_SALT_LETTERS = (
    b"0123456789abcdef",
    _BASE_36,
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz+/",
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_",
    bytes(range(0x20, 0x7F)),
)
_MIN_TEXT = 8  # bytes of a salt that is text, and not by chance
_NONCE = re.compile(r"[!-+\--~]+")  # printable ASCII without the comma
_ATTRIBUTE = re.compile(r"[A-Za-z]+=[^\0]+")


class ScramCredential(msgspec.Struct, frozen=True):
    """Data about a password: enough to check it, not enough to log in with."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


class KnownCredential(NamedTuple):
    credential: ScramCredential
    revision: int  # of the account, 0 for a user that does not exist
    # For a delegation token, its owner (None if there is no such token) and its end.
    owner: str | None = None
    expires_at: int = NEVER


FindCredential = Callable[[str], KnownCredential]


# --- keys ---


def hash_name(mechanism: Mechanism) -> str:
    """Return the name that `hashlib` uses."""
    return _HASHES[mechanism]


def credential_from(
    mechanism: Mechanism, salt: bytes, iterations: int, salted_password: bytes
) -> ScramCredential:
    name = _HASHES[mechanism]
    client_key = hmac.digest(salted_password, b"Client Key", name)
    return ScramCredential(
        salt,
        iterations,
        stored_key=hashlib.new(name, client_key).digest(),
        server_key=hmac.digest(salted_password, b"Server Key", name),
    )


def salted_password(mechanism: Mechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Derive the salted password. This takes milliseconds, without the interpreter lock."""
    return hashlib.pbkdf2_hmac(_HASHES[mechanism], password.encode(), salt, iterations)


def is_password(mechanism: Mechanism, password: str, credential: ScramCredential) -> bool:
    """Check a password. This takes milliseconds, without the interpreter lock."""
    salted = salted_password(mechanism, password, credential.salt, credential.iterations)
    found = credential_from(mechanism, credential.salt, credential.iterations, salted)
    return hmac.compare_digest(found.stored_key, credential.stored_key)


class Shape(NamedTuple):
    """The appearance of a credential to someone who does not know the password."""

    salt_size: int
    iterations: int
    letters: bytes = b""  # the characters of its salt; empty for any bytes


def shape_of(credential: ScramCredential) -> Shape:
    salt = credential.salt
    for letters in _SALT_LETTERS:
        if len(salt) >= _MIN_TEXT and not salt.translate(None, letters):
            return Shape(len(salt), credential.iterations, letters)
    return Shape(len(salt), credential.iterations)


def place_of(secret: bytes, user: str) -> bytes:
    """Return the position of a name among all names: a nonexistent user imitates the existing user
    that follows it. So each user is imitated by as many names as any other, and a new user changes
    only a few."""
    return hmac.digest(secret, b"place " + user.encode(), "sha256")


def no_credential(mechanism: Mechanism, secret: bytes, user: str, shape: Shape) -> ScramCredential:
    """Return the credential of a nonexistent user: always the same for a name, and shaped like one
    that exists."""
    name = _HASHES[mechanism]
    seed = hmac.digest(secret, f"{mechanism} {user}".encode(), "sha512")
    # No password has this key: finding one would mean inverting the hash.
    return ScramCredential(
        _salt(seed, shape),
        shape.iterations,
        hmac.digest(seed, b"stored", name),
        hmac.digest(seed, b"server", name),
    )


def _salt(seed: bytes, shape: Shape) -> bytes:
    random = hashlib.shake_256(b"salt" + seed)
    size, letters = shape.salt_size, shape.letters
    if not letters:
        return random.digest(size)
    number = int.from_bytes(random.digest(size + 8))
    if letters == _BASE_36 and abs(size - _KAFKA_SALT_SIZE) <= 1:
        # Kafka's tools write a number of 130 bits: usually 25 digits, or 26 that begin with 1.
        number, size = number % (1 << 130), 0
    digits = bytearray()
    while number and (size == 0 or len(digits) < size):
        number, digit = divmod(number, len(letters))
        digits.append(letters[digit])
    return bytes(reversed(digits))


# --- messages ---


class _Malformed(ValueError):
    pass


class ClientFirst(NamedTuple):
    header: str  # such as n,, and returned in the last message
    user: str
    nonce: str
    bare: str
    extensions: dict[str, str]


class ClientFinal(NamedTuple):
    channel_binding: bytes
    nonce: str
    proof: bytes
    without_proof: str


def read_client_first(token: bytes) -> ClientFirst:
    """Parse the client's first message. Raises ValueError."""
    text = token.decode()  # UnicodeDecodeError is a ValueError
    parts = text.split(",", 2)
    if len(parts) != 3:
        raise _Malformed("the first message has no header")
    flag, authzid, bare = parts
    if flag.startswith("p="):
        raise _Malformed("channel binding is not served")
    if flag not in ("n", "y"):
        raise _Malformed("an unknown channel binding flag")
    name, nonce, *rest = _attributes(bare, "nr")
    user = _unescaped(name)
    if authzid and (not authzid.startswith("a=") or _unescaped(authzid[2:]) != user):
        raise _Malformed("the authorization id is not the user")
    if not _is_nonce(nonce):
        raise _Malformed("the nonce cannot be read")
    return ClientFirst(f"{flag},{authzid},", user, nonce, bare, _extensions(rest))


def read_client_final(token: bytes) -> ClientFinal:
    """Parse the client's final message. Raises ValueError."""
    text = token.decode()
    without_proof, found, proof = text.rpartition(",p=")
    if not found:
        raise _Malformed("the last message has no proof")
    binding, nonce, *rest = _attributes(without_proof, "cr")
    _extensions(rest)
    return ClientFinal(_base64(binding), nonce, _base64(proof), without_proof)


def _attributes(text: str, first: str) -> list[str]:
    """Return the values of the attributes `first`, then the others as they are."""
    parts = text.split(",")
    if len(parts) < len(first):
        raise _Malformed("attributes are missing")
    for index, letter in enumerate(first):
        # This also refuses m=, which is reserved for mandatory extensions.
        if not parts[index].startswith(letter + "="):
            raise _Malformed(f"attribute {letter} is missing or not in its place")
        parts[index] = parts[index][2:]
    return parts


def _extensions(parts: list[str]) -> dict[str, str]:
    """Parse extensions. Unknown ones are ignored, as the RFC requires."""
    if not all(map(_ATTRIBUTE.fullmatch, parts)):
        raise _Malformed("an extension cannot be read")
    return dict(part.split("=", 1) for part in parts)


def _unescaped(name: str) -> str:
    if not 0 < len(name) <= 3 * MAX_NAME or "\0" in name:
        raise _Malformed("a name that cannot be")
    if re.search("=(?!2C|3D)", name):
        raise _Malformed("a name with an unknown escape")
    plain = name.replace("=2C", ",").replace("=3D", "=")
    if len(plain) > MAX_NAME:
        raise _Malformed("a name that is too long")
    return plain


def _is_nonce(nonce: str) -> bool:
    return len(nonce) <= MAX_NONCE and _NONCE.fullmatch(nonce) is not None


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as fault:
        raise _Malformed(f"base64: {fault}") from None


# --- the conversation ---


class ScramConversation:
    """`nonce` is the server's: unpredictable, printable, without a comma. `find_token` looks up
    delegation tokens by id; None if they are not served."""

    def __init__(
        self,
        mechanism: Mechanism,
        find: FindCredential,
        nonce: str,
        find_token: FindCredential | None = None,
    ) -> None:
        self._mechanism = mechanism
        self._find = find
        self._find_token = find_token
        self._is_token = False
        self._own_nonce = nonce
        self._first: ClientFirst | None = None
        self._server_first = ""
        self._known: KnownCredential | None = None

    def receive(self, token: bytes, now: int) -> Step:
        user = None if self._first is None else self._first.user
        try:
            return self._begin(token) if self._first is None else self._finish(token)
        except ValueError as fault:
            return Rejected(f"malformed: {fault}", user)

    def _begin(self, token: bytes) -> Step:
        first = read_client_first(token)
        find = self._find
        if first.extensions.get("tokenauth", "").lower() == "true":
            if self._find_token is None:
                return Rejected("delegation tokens are not served", first.user)
            self._is_token, find = True, self._find_token
        self._first = first
        self._known = find(first.user)
        credential = self._known.credential
        salt = base64.b64encode(credential.salt).decode()
        nonce = first.nonce + self._own_nonce
        self._server_first = f"r={nonce},s={salt},i={credential.iterations}"
        return Challenge(self._server_first.encode())

    def _finish(self, token: bytes) -> Step:
        first, known = self._first, self._known
        assert first is not None
        assert known is not None
        final = read_client_final(token)
        if final.channel_binding != first.header.encode():
            raise _Malformed("the header is not that of the first message")
        nonce = first.nonce + self._own_nonce
        # librdkafka before 2.6.1 repeats its own part at the front; Kafka accepts that too.
        if final.nonce not in (nonce, first.nonce + nonce):
            raise _Malformed("the nonce is not the one given")
        name, credential = _HASHES[self._mechanism], known.credential
        said = ",".join((first.bare, self._server_first, final.without_proof)).encode()
        signature = hmac.digest(credential.stored_key, said, name)
        if len(final.proof) != len(signature):
            raise _Malformed("a proof of another length")
        client_key = _xor(final.proof, signature)
        if not hmac.compare_digest(hashlib.new(name, client_key).digest(), credential.stored_key):
            what = "unknown or expired token" if self._is_token else "unknown user"
            return Rejected(f"{what} or wrong password", first.user)
        verifier = b"v=" + base64.b64encode(hmac.digest(credential.server_key, said, name))
        if not self._is_token:
            return Accepted(first.user, verifier, revision=known.revision)
        assert known.owner is not None
        return Accepted(known.owner, verifier, known.expires_at, token_id=first.user)


def _xor(one: bytes, other: bytes) -> bytes:
    return (int.from_bytes(one) ^ int.from_bytes(other)).to_bytes(len(one))
