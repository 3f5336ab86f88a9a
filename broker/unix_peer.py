"""Who is at the other end of a unix socket.

The runtime directory lets nobody but the broker's user in; this is the second lock, for a directory
whose permissions were changed.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from typing import cast

_CREDENTIALS = struct.Struct("3i")  # ucred: process, user, group
ROOT = 0


def foreign_user(transport: asyncio.BaseTransport) -> int | None:
    """The user at the other end, if that is neither ours nor root; None also where the platform
    does not say."""
    option: int | None = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    ask = transport.get_extra_info("socket").getsockopt
    _, user, _ = _CREDENTIALS.unpack(
        cast("Callable[..., bytes]", ask)(socket.SOL_SOCKET, option, _CREDENTIALS.size)
    )
    return None if user in {os.geteuid(), ROOT} else user
