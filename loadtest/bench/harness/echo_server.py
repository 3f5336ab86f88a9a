"""A bare uvloop server: answers every frame with the same bytes. The baseline of tail fetches.

`python -m loadtest.bench.harness.echo_server SIZE` prints its port.
"""

from __future__ import annotations

import asyncio
import struct
import sys
from typing import cast

import uvloop


class Echo(asyncio.Protocol):
    def __init__(self, reply: bytes) -> None:
        self._reply = reply
        self._pending = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        pending = self._pending + data
        at = 0
        while len(pending) - at >= 4:
            (size,) = struct.unpack_from(">i", pending, at)
            if len(pending) - at - 4 < size:
                break
            at += 4 + size
            self._transport.write(self._reply)
        self._pending = pending[at:]


async def serve(size: int) -> None:
    reply = struct.pack(">i", size) + bytes(size)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Echo(reply), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
