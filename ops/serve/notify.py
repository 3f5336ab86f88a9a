"""Notifications to systemd, if it started `serve` (Type=notify): ready, and still alive.

One datagram each to the socket that NOTIFY_SOCKET names; without it nothing is sent.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping

READY = "READY=1"
ALIVE = "WATCHDOG=1"


def notify(state: str, env: Mapping[str, str] = os.environ) -> None:
    path = env.get("NOTIFY_SOCKET")
    if not path:
        return
    if path.startswith("@"):  # Linux' abstract names
        path = "\0" + path[1:]
    # Without a listener there is nothing to do.
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sent:
        sent.sendto(state.encode(), path)


async def keep_alive(env: Mapping[str, str] = os.environ) -> None:
    """Twice in the time after which systemd would take us for dead (WatchdogSec)."""
    within = env.get("WATCHDOG_USEC", "")
    if not within.isdigit() or not int(within):
        return
    while True:
        notify(ALIVE, env)
        await asyncio.sleep(int(within) / 2e6)
