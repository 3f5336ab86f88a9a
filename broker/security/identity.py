"""The identity of a connection: principal, address, and the listener it came in through.

A worker knows it from its own socket (TLS, SASL), or from the preamble on a unix socket: the first
frame there, sent by a router for its client or by another worker for itself. A connection to a unix
socket without a preamble is the operator's: opening it takes access to the runtime directory.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

ANONYMOUS = "User:ANONYMOUS"  # Kafka's name for clients that need not authenticate
USER = "User:"  # the only type of principals
NEVER = 0


class Role(StrEnum):
    CLIENT = "client"
    UNAUTHENTICATED = "unauthenticated"  # a client that has to log in first
    OPERATOR = "operator"  # on this machine, as the user that runs the broker
    WORKER = "worker"  # another worker, which asks on behalf of its clients


class Identity(msgspec.Struct, frozen=True, omit_defaults=True):
    """An identity is fixed until the connection authenticates (again)."""

    principal: str = ANONYMOUS
    host: str = "?"
    listener: str = "PLAINTEXT"
    role: Role = Role.CLIENT
    # The end of the session in milliseconds since 1970 (KIP-368); NEVER if it has none.
    expires_at: int = NEVER
    mechanism: str = ""  # of SASL, if it has logged in
    # The revision of the account (security/accounts.py): a session with another revision than the
    # current one is over. 0 if there is no account (a certificate, a token).
    revision: int = 0
    port: int = 0  # the client's
    # The id of the delegation token (security/tokens.py) that was used to log in, if any: then
    # `principal` is the owner, and the session ends with the token.
    token: str = ""
    # The client's name and version from ApiVersions; kept if telemetry is on.
    software: tuple[str, str] = ("", "")

    @property
    def is_trusted(self) -> bool:
        """The broker's own processes and its operator may do everything."""
        return self.role in (Role.OPERATOR, Role.WORKER)

    @property
    def user(self) -> str:
        """The principal's name without its type."""
        return self.principal.removeprefix(USER)


OPERATOR = Identity(principal="User:local", host="unix", listener="", role=Role.OPERATOR)


def worker_identity(index: int) -> Identity:
    return Identity(principal="User:local", host=f"worker {index}", listener="", role=Role.WORKER)


class EndedSessions(msgspec.Struct, frozen=True):
    """Sessions that are over: those of these users with another revision, and those of these
    delegation tokens."""

    revisions: dict[str, int] = {}
    tokens: frozenset[str] = frozenset()

    def concerns(self, identity: Identity) -> bool:
        if identity.token:
            return identity.token in self.tokens
        if not identity.revision:
            return False
        revision = self.revisions.get(identity.user)
        return revision is not None and revision != identity.revision
