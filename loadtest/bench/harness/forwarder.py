"""A bare uvloop forwarder that passes bytes on, both ways, unread: the floor of a router's cost.

`python -m moldau.loadtest.bench.harness.forwarder PATH` prints its port; each connection to it gets
one of its own to the unix socket at PATH, as a client of the router gets one to each worker it
needs.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import uvloop

from moldau.broker.process import prepare_process
from moldau.loadtest.bench.harness.echo_server import Address, child_server


class ForwardingProtocol(asyncio.Protocol):
    """One side: what it receives is written to the other."""

    other: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        assert self.other is not None
        self.other.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is not None:
            self.other.abort()


class ClientSide(ForwardingProtocol):
    def __init__(self, path: str) -> None:
        self._path = path
        self._early: list[bytes] = []  # received before the other side was connected
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connecting = asyncio.ensure_future(self._connect())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        transport, worker_side = await loop.create_unix_connection(ForwardingProtocol, self._path)
        worker_side.other = self.transport
        self.other = transport
        transport.writelines(self._early)
        self._early.clear()

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self._early.append(data)
        else:
            self.other.write(data)


async def serve(path: str) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: ClientSide(path), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def forwarder(path: str) -> Iterator[tuple[Address, int]]:
    """One in front of a worker's unix socket: its address and pid."""
    with child_server("moldau.loadtest.bench.harness.forwarder", path) as server:
        yield server


if __name__ == "__main__":
    prepare_process()
    uvloop.run(serve(sys.argv[1]))
