"""The outcomes of each step of a SASL conversation. Each mechanism has its own module.

A conversation is created for one login. `receive` takes a client's message and returns the next
step. After `Accepted` or `Rejected` it is over.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

import msgspec

from moldau.broker.security.identity import NEVER

MAX_NAME = 1024  # characters of a user's name
# The size of a request before the mechanism is chosen, and with mechanisms that send names and
# passwords. Anyone can make the broker wait for the rest of a request.
MAX_SMALL = 16 * 1024


class Mechanism(StrEnum):
    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"


def most_received(mechanism: str, configured: int) -> int:
    """Return the maximum size of a request of a client that logs in. `mechanism` is empty until it
    is chosen."""
    return configured if mechanism == Mechanism.OAUTHBEARER else min(configured, MAX_SMALL)


class Challenge(msgspec.Struct, frozen=True):
    """Send this, and continue with the client's answer."""

    token: bytes


class Accepted(msgspec.Struct, frozen=True):
    """The client is this user."""

    user: str
    token: bytes = b""
    # The credential is not valid for longer, in milliseconds since 1970.
    expires_at: int = NEVER
    # The revision of the user's credentials (`Account.revision`); 0 if there is no account.
    revision: int = 0
    token_id: str = ""  # of a delegation token, whose owner `user` is


class Rejected(msgspec.Struct, frozen=True):
    """The login has failed. `reason` is for the log: it may say whether the user exists."""

    reason: str
    user: str | None = None
    message: str | None = None  # for the client; None: the one text for all failures


class CheckPassword(msgspec.Struct, frozen=True):
    """Checking the password takes milliseconds. `Conversation.checked` continues with the
    result."""

    user: str
    password: str

    def __repr__(self) -> str:  # never into a log
        return f"CheckPassword(user={self.user!r})"


Step = Challenge | Accepted | Rejected | CheckPassword


class Conversation(Protocol):
    def receive(self, token: bytes, now: int) -> Step:
        """Process a message. `now` is in milliseconds since 1970."""
