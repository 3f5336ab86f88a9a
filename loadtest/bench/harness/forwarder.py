"""A bare uvloop forwarder: what comes goes on, both ways, unread. The floor of a router's cost.

`python -m loadtest.bench.harness.forwarder PATH` prints its port; each connection to it gets one
of its own to the unix socket at PATH, as a client of the router gets one to each worker it needs.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import uvloop

from broker.process import prepare_process


class Way(asyncio.Protocol):
    """One end: what it receives is written to the other."""

    other: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        assert self.other is not None
        self.other.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is not None:
            self.other.abort()


class Front(Way):
    def __init__(self, path: str) -> None:
        self._path = path
        self._early: list[bytes] = []
        self._opening: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._opening = asyncio.ensure_future(self._open())

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        transport, back = await loop.create_unix_connection(Way, self._path)
        back.other = self.transport
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
    server = await loop.create_server(lambda: Front(path), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    prepare_process()
    uvloop.run(serve(sys.argv[1]))
