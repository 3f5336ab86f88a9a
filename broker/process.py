"""What every process of ours does before it serves: limits, memory, its word about a bad start."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import resource
import sys
from collections.abc import Callable
from typing import NoReturn

BOOT_FAILED = 3
BACKLOG = 4096

Protocol = Callable[[], asyncio.BaseProtocol]


class BootFailure(Exception):
    """The process cannot start; the text names cause and remedy."""


def prepare_process() -> None:
    """As many descriptors as allowed; keep freed memory instead of giving it back each time."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    # Frames of 128 KB and more would be mapped and unmapped one by one (332 us against 57 us).
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        for parameter, value in ((-3, 32 << 20), (-1, 256 << 20), (-2, 16 << 20)):
            libc.mallopt(parameter, value)


async def listen(
    protocol: Protocol, host: str, port: int, unix_socket: str, *, shared: bool
) -> list[asyncio.Server]:
    """On a port, shared with others of our kind or not, and on a socket for those on this host."""
    loop = asyncio.get_running_loop()
    try:
        # None leaves it to the loop: False is not the same on every platform.
        reuse = True if shared else None
        server = await loop.create_server(protocol, host, port, backlog=BACKLOG, reuse_port=reuse)
    except OSError as fault:
        text = f"cannot listen on {host}:{port}: {fault.strerror or fault}"
        raise BootFailure(f"{text}; choose another --host or --port") from None
    # What a predecessor left behind is in the way.
    with contextlib.suppress(FileNotFoundError):
        os.unlink(unix_socket)
    try:
        local = await loop.create_unix_server(protocol, unix_socket, backlog=BACKLOG)
    except OSError as fault:
        raise BootFailure(f"cannot listen on {unix_socket}: {fault}") from None
    return [server, local]


def collect_seldom() -> None:
    """What lives now lives on, and requests leave no cycles behind."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 20)


def watch_parent(gone: Callable[[], None]) -> None:
    """Call `gone` when standard input ends: the supervisor holds its other end."""
    loop = asyncio.get_running_loop()

    def readable() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            gone()

    loop.add_reader(0, readable)


def say_ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


def fail(role: str, reason: str) -> NoReturn:
    """End a process that cannot start; the last line of standard error says why."""
    sys.stderr.write(f"moldau {role}: {reason}\n")
    sys.stderr.flush()
    sys.exit(BOOT_FAILED)
