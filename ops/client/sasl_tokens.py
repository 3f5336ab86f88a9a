"""The messages with which a client authenticates, mechanism by mechanism. No I/O.

A conversation is a generator: it yields a token to send, and is sent the broker's answer. It ends
when the client is satisfied, and raises AuthenticationFailed when it is not.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

from moldau.ops.client.scram import ScramClient, ScramError
from moldau.ops.client.security import OAUTHBEARER, PLAIN, Sasl

Conversation = Generator[bytes, bytes, None]


class AuthenticationFailed(ConnectionError):
    """The broker does not accept the client, or cannot prove itself. Cause and remedy are in it.

    Trying again does not help.
    """


def conversation(sasl: Sasl) -> Conversation:
    if sasl.mechanism == PLAIN:
        return _plain(sasl)
    return _bearer(sasl) if sasl.mechanism == OAUTHBEARER else _scram(sasl)


def _plain(sasl: Sasl) -> Conversation:
    yield f"\0{sasl.username}\0{sasl.password}".encode()


def _scram(sasl: Sasl) -> Conversation:
    client = ScramClient(
        sasl.mechanism, sasl.username, sasl.password, is_token=sasl.is_delegation_token
    )
    try:
        challenge = yield client.first()
        final = yield client.final(challenge)
        client.verify(final)
    except ScramError as error:
        raise AuthenticationFailed(f"{sasl.mechanism}: {error}") from None


def _bearer(sasl: Sasl) -> Conversation:
    refusal = yield f"n,,\x01auth=Bearer {_token(sasl)}\x01\x01".encode()
    if refusal:  # RFC 7628: the server explains, and wants one more message before it fails
        reason = refusal.decode(errors="replace")
        yield b"\x01"
        raise AuthenticationFailed(f"OAUTHBEARER: the broker does not accept the token: {reason}")


def _token(sasl: Sasl) -> str:
    if sasl.token:
        return sasl.token
    try:
        return Path(sasl.token_file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise AuthenticationFailed(
            f"the token file {sasl.token_file} cannot be read: {error}"
        ) from None
