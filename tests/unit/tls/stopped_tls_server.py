"""A TLS server in a process of its own, which a test can stop: echoes what it gets.

Arguments: the keystore, and the seconds that a handshake has. Prints its port.
"""

from __future__ import annotations

import asyncio
import sys

import uvloop

from moldau.broker.settings.processes import TlsSettings
from moldau.broker.tls import accepting, handshake_queue
from tests.support.drivers.tls_server import tls_served


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)  # type: ignore[attr-defined]


async def main(keystore: str, seconds: float) -> None:
    handshake_queue.HANDSHAKE_S = seconds
    accepting.CHECK_S = 0.1
    async with tls_served(Echo, TlsSettings(keystore=keystore)) as served:
        print(served.address[1], flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], float(sys.argv[2])))
