"""Who speaks on a connection: the principal, its address, the listener it came in through.

A worker knows it from its own socket (TLS, SASL), or from the preamble on a unix socket: the first
frame there, sent by a router for its client or by another worker for itself. A connection to a
unix socket without a preamble is the operator: whoever can open it owns the runtime directory.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

ANONYMOUS = "User:ANONYMOUS"  # Kafka's name for clients that need not authenticate
USER = "User:"  # the only type of principals
NEVER = 0


class Role(StrEnum):
    CLIENT = "client"
    UNAUTHENTICATED = "unauthenticated"  # a client that has to log in before anything else
    OPERATOR = "operator"  # on this machine, as the user that runs the broker
    WORKER = "worker"  # another worker asks, for what its clients need


class Identity(msgspec.Struct, frozen=True, omit_defaults=True):
    """Fixed for a connection until it authenticates (again)."""

    principal: str = ANONYMOUS
    host: str = "?"
    listener: str = "PLAINTEXT"
    role: Role = Role.CLIENT
    # The session's end in milliseconds since 1970 (KIP-368); NEVER: it has none.
    expires_at: int = NEVER
    mechanism: str = ""  # of SASL, if it has logged in
    # Of the account it has logged in to (security/accounts.py): a session of another revision than
    # the current one is over. 0: there is no account (a certificate, a token).
    revision: int = 0
    port: int = 0  # the client's
    # The id of the delegation token it has logged in with (security/tokens.py), if it has: then
    # `principal` is the owner, and the session is over when the token is.
    token: str = ""
    # The client's name and version, as it says in ApiVersions; kept where telemetry is on.
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
    """Sessions that are over: those of these users whose revision is not this one, and those of
    these delegation tokens."""

    revisions: dict[str, int] = {}
    tokens: frozenset[str] = frozenset()

    def concerns(self, identity: Identity) -> bool:
        if identity.token:
            return identity.token in self.tokens
        if not identity.revision:
            return False
        revision = self.revisions.get(identity.user)
        return revision is not None and revision != identity.revision
