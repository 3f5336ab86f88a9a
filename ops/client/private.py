"""Requests that are not Kafka's: to a worker of a broker on this machine, over its unix socket.

What the protocol has no field for, and only a worker can look up. Only the user that runs the
broker can ask it.
"""

from __future__ import annotations

import socket
import struct

from moldau.broker.wire.frame import private_frame

MAX_REPLY_BYTES = 16 << 20
_HEAD = struct.Struct(">ii")  # length, correlation id


def ask_private(path: str, key: int, body: bytes, timeout: float) -> bytes | None:
    """None: it does not answer, or not this."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout)
            connection.connect(path)
            connection.sendall(private_frame(key, body))
            with connection.makefile("rb") as replies:
                head = replies.read(_HEAD.size)
                if len(head) < _HEAD.size:
                    return None
                size = _HEAD.unpack(head)[0] - 4
                if not 0 <= size <= MAX_REPLY_BYTES:
                    return None
                reply = replies.read(size)
                return reply if len(reply) == size else None
    except OSError:
        return None
