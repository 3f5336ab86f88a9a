"""A worker that only keeps a worker's contract with the supervisor, and breaks it on request.

Reads its settings from standard input, listens where it should, answers pings on its unix socket,
says `ready`, leaves on SIGTERM or at the end of its life-line. The environment variable
FAKE_WORKER names the way to misbehave: exit-3, deaf (to SIGTERM), mute (no answer to pings).
"""

import asyncio
import os
import signal
import socket
import struct
import sys

import msgspec

from moldau.broker.settings.processes import WorkerSettings

MISBEHAVIOUR = os.environ.get("FAKE_WORKER", "")


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            request = await reader.readexactly(size)
            if MISBEHAVIOUR != "mute":
                writer.write(struct.pack(">i", 4) + request[4:8])
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def main() -> None:
    settings = msgspec.json.decode(sys.stdin.buffer.readline(), type=WorkerSettings)
    if MISBEHAVIOUR == "exit-3":
        print(f"worker {settings.index}: refuses to start", file=sys.stderr)
        sys.exit(3)
    done = asyncio.Event()
    loop = asyncio.get_running_loop()
    if MISBEHAVIOUR == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        loop.add_signal_handler(signal.SIGTERM, done.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)
    loop.add_reader(sys.stdin.fileno(), lambda: os._exit(1))
    servers = [
        await asyncio.start_server(answer, sock=socket.socket(fileno=descriptor))
        for descriptor in settings.descriptors
    ]
    print(f"log level is {settings.log_level}", file=sys.stderr)
    print("ready", flush=True)
    await done.wait()
    for server in servers:
        server.close()


if __name__ == "__main__":
    asyncio.run(main())
