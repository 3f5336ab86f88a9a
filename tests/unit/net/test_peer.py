"""Unix sockets take the broker's own user and root, nobody else."""

import asyncio
import os
import socket
from pathlib import Path

import pytest
import uvloop

from moldau.broker.net import peer
from moldau.broker.net.peer import foreign_user

needs_credentials = pytest.mark.skipif(
    not hasattr(socket, "SO_PEERCRED"), reason="this platform does not tell the peer's user"
)


def found_over_a_socket(path: Path) -> int | None:
    found: list[int | None] = []
    accepted = asyncio.Event()

    class Server(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            found.append(foreign_user(transport))
            accepted.set()
            transport.close()

    async def ask() -> int | None:
        server = await asyncio.get_running_loop().create_unix_server(Server, str(path))
        _, writer = await asyncio.open_unix_connection(str(path))
        await accepted.wait()
        writer.close()
        server.close()
        return found[0]

    return uvloop.run(ask())


@needs_credentials
def test_our_own_user_is_let_in(short_tmp_path: Path) -> None:
    assert found_over_a_socket(short_tmp_path / "s") is None


@needs_credentials
def test_another_user_is_found_out(short_tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "ROOT", -1)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert found_over_a_socket(short_tmp_path / "s") == os.getuid()


def test_a_platform_that_does_not_tell_lets_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "SO_PEERCRED", raising=False)
    assert foreign_user(asyncio.BaseTransport()) is None
