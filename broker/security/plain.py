"""PLAIN, the server's side (RFC 4616): [authorization id] NUL user NUL password, in one message.

The password is checked against the user's SCRAM credential: there is no second set of passwords.
"""

from __future__ import annotations

from moldau.broker.security.sasl import MAX_NAME, Accepted, CheckPassword, Rejected, Step

MAX_PASSWORD = 4096  # characters
INVALID = "Authentication failed: Invalid username or password"


class PlainConversation:
    def __init__(self) -> None:
        self._user = ""

    def receive(self, token: bytes, now: int) -> Step:
        try:
            authzid, user, password = token.decode().split("\0")
        except ValueError:  # not UTF-8, or not three parts
            return Rejected("malformed: not three texts", message=INVALID)
        if not (0 < len(user) <= MAX_NAME and 0 < len(password) <= MAX_PASSWORD):
            return Rejected("malformed: no user or no password, or too long", message=INVALID)
        if authzid not in ("", user):
            return Rejected("the authorization id is not the user", user, INVALID)
        self._user = user
        return CheckPassword(user, password)

    def checked(self, is_right: bool, revision: int) -> Step:
        if not is_right:
            return Rejected("unknown user or wrong password", self._user, INVALID)
        return Accepted(self._user, revision=revision)
