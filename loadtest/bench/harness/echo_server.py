"""A bare uvloop server that answers every frame with the same bytes: what the sockets alone cost.

`python -m moldau.loadtest.bench.harness.echo_server BYTES` prints its port.
"""

from __future__ import annotations

import asyncio
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import uvloop

from moldau.loadtest.bench.harness.secured import wants_nothing

Address = tuple[str, int]


class EchoProtocol(asyncio.Protocol):
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


async def serve(reply_bytes: int) -> None:
    reply = struct.pack(">i", reply_bytes) + bytes(reply_bytes)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: EchoProtocol(reply), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def child_server(module: str, argument: str) -> Iterator[tuple[Address, int]]:
    """A module run as a process that prints its port: its address and pid."""
    process = subprocess.Popen([sys.executable, "-m", module, argument], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield wants_nothing(("127.0.0.1", int(process.stdout.readline()))), process.pid
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


@contextmanager
def echo_server(reply_bytes: int) -> Iterator[tuple[Address, int]]:
    with child_server("moldau.loadtest.bench.harness.echo_server", str(reply_bytes)) as server:
        yield server


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
