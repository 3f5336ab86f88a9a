"""Who speaks on a connection: the principal, its address, the listener it came in through.

A worker knows it from its own socket (TLS, SASL), or from the preamble on a unix socket: the first
frame there, sent by a router for its client or by another worker for itself. A connection to a
unix socket without a preamble is the operator: whoever can open it owns the runtime directory.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from broker.wire.frame import PREAMBLE, RequestHeader, private_frame

ANONYMOUS = "User:ANONYMOUS"  # Kafka's name for clients that need not authenticate
NEVER = 0


class Role(StrEnum):
    CLIENT = "client"
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

    @property
    def is_trusted(self) -> bool:
        """The broker's own processes and its operator may do everything."""
        return self.role is not Role.CLIENT


OPERATOR = Identity(principal="User:local", host="unix", listener="", role=Role.OPERATOR)


def worker_identity(index: int) -> Identity:
    return Identity(principal="User:local", host=f"worker {index}", listener="", role=Role.WORKER)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Identity)


def preamble(identity: Identity) -> bytes:
    """The frame that introduces `identity` to a worker; there is no reply.

    Workers accept it on their unix sockets only: over TCP it is an API that is not served.
    """
    return private_frame(PREAMBLE, _encoder.encode(identity))


def read_preamble(header: RequestHeader, frame: bytes | bytearray) -> Identity:
    """Raises ValueError."""
    return _decoder.decode(memoryview(frame)[header.body_at :])
