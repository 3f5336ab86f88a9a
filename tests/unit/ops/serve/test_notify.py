"""What systemd is told."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from moldau.ops.serve.notify import READY, keep_alive, notify


def test_nothing_is_said_without_systemd() -> None:
    notify(READY, {})
    asyncio.run(keep_alive({}))  # returns at once


def test_a_socket_that_is_gone_is_no_fault(tmp_path: Path) -> None:
    notify(READY, {"NOTIFY_SOCKET": str(tmp_path / "gone")})


async def test_ready_and_signs_of_life(short_tmp_path: Path) -> None:
    path = short_tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(path))
        env = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "2000"}
        notify(READY, env)
        assert systemd.recv(64) == b"READY=1"
        signs = asyncio.ensure_future(keep_alive(env))
        loop = asyncio.get_running_loop()
        for _ in range(3):
            assert await loop.run_in_executor(None, systemd.recv, 64) == b"WATCHDOG=1"
        signs.cancel()
