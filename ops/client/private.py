"""Private requests to a worker of a broker on this machine, over its unix socket.

They ask for what Kafka's protocol has no field for. Only the user that runs the broker can send
them.
"""

from __future__ import annotations

import socket
import struct

from moldau.broker.wire.frame import private_frame

MAX_REPLY_BYTES = 16 << 20
_HEAD = struct.Struct(">ii")  # length, correlation id


def ask_private(path: str, key: int, body: bytes, timeout: float) -> bytes | None:
    """The answer; None if the worker does not answer, or not this request."""
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
