"""What a SASL conversation leads to, step by step; the mechanisms are in modules of their own.

A conversation is made for one login. `receive` takes what the client sent, and returns what is to
be done. After `Accepted` or `Rejected` it is over.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

import msgspec

from moldau.broker.security.identity import NEVER

MAX_NAME = 1024  # characters of a user's name
# Bytes of a request before the mechanism is chosen, and with one that sends names and passwords:
# anyone can make the broker wait for the rest of a request.
MAX_SMALL = 16 * 1024


class Mechanism(StrEnum):
    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"


def most_received(mechanism: str, configured: int) -> int:
    """Bytes of one request of a client that logs in; `mechanism` is empty until it is chosen."""
    return configured if mechanism == Mechanism.OAUTHBEARER else min(configured, MAX_SMALL)


class Challenge(msgspec.Struct, frozen=True):
    """Send this, and go on with what the client answers."""

    token: bytes


class Accepted(msgspec.Struct, frozen=True):
    """The client is this user."""

    user: str
    token: bytes = b""
    # Milliseconds since 1970: the credential is not valid for longer.
    expires_at: int = NEVER
    # Of the user's credentials (`Account.revision`); 0: there is no account.
    revision: int = 0
    token_id: str = ""  # of a delegation token, whose owner `user` is


class Rejected(msgspec.Struct, frozen=True):
    """The login has failed. `reason` is for the log: it may say whether the user exists."""

    reason: str
    user: str | None = None
    message: str | None = None  # for the client; None: the one text for all failures


class CheckPassword(msgspec.Struct, frozen=True):
    """Whether the password is right takes milliseconds to find out. `Conversation.checked` goes on
    with the answer."""

    user: str
    password: str

    def __repr__(self) -> str:  # never into a log
        return f"CheckPassword(user={self.user!r})"


Step = Challenge | Accepted | Rejected | CheckPassword


class Conversation(Protocol):
    def receive(self, token: bytes, now: int) -> Step:
        """`now` in milliseconds since 1970."""
