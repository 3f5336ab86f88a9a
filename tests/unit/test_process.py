"""Listening on sockets that the supervisor has bound."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest

from moldau.broker.process import BootFailure, listen


def bound_to(port: int = 0) -> socket.socket:
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind(("127.0.0.1", port))
    return found


async def test_a_port_on_which_another_process_was_faster_is_a_boot_failure() -> None:
    with bound_to() as ours:
        port = ours.getsockname()[1]
        with bound_to(port) as other:
            other.listen()
            with pytest.raises(BootFailure, match=f"cannot listen on .*{port}.*in use"):
                listen(asyncio.Protocol, [os.dup(ours.fileno())])


async def test_the_next_process_listens_on_the_same_socket() -> None:
    with bound_to() as ours:
        for _ in range(2):
            (server,) = listen(asyncio.Protocol, [os.dup(ours.fileno())])
            _, writer = await asyncio.open_connection(*ours.getsockname())
            writer.close()
            server.close()
