"""Other workers as one of them sees them: unix sockets in the test's own loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from moldau.broker.private.table import PREAMBLE
from moldau.broker.wire.advertised import PING
from moldau.broker.wire.frame import read_request_header, response_frame
from moldau.broker.wire.schema import Message

# Makes the answer to a request; None: hang up.
Behaviour = Callable[[Any], Awaitable[Message | None]]


class FakePeer:
    """A worker that notes what it is asked. `pause`: connections are accepted, nothing is read."""

    def __init__(self, path: str, behave: Behaviour) -> None:
        self.path = path
        self.behave = behave
        self.requests: list[Any] = []
        self.greetings: list[str | None] = []
        self.connections = 0
        self._awake = asyncio.Event()
        self._awake.set()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self.path)

    async def stop(self) -> None:
        """Stop as by kill -9, without a supervisor that keeps its socket."""
        if self._server is not None:
            self._server.close()
            self._server = None
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        self.cut()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def pause(self) -> None:
        self._awake.clear()

    def resume(self) -> None:
        self._awake.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        self._writers.add(writer)
        self.connections += 1
        try:
            with contextlib.suppress(
                asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError
            ):
                await self._answer(reader, writer)
        finally:
            writer.close()
            self._writers.discard(writer)
            self._serving.discard(task)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            frame = await reader.readexactly(size)
            await self._awake.wait()
            if frame == PING[4:]:
                writer.write(struct.pack(">i", 4) + frame[4:8])
                continue
            header = read_request_header(frame)
            if header.api_key == PREAMBLE.key:
                self.greetings.append(PREAMBLE.read_request(frame[header.body_at :]).host)
                continue
            assert header.api is not None
            codec = header.api.request_codec(header.api_version)
            request, _ = codec.decode(frame, header.body_at)
            self.requests.append(request)
            answer = await self.behave(request)
            await self._awake.wait()
            if answer is None:
                return
            parts = response_frame(header.api, header.api_version, header.correlation_id, answer)
            writer.write(b"".join(parts))


@contextlib.asynccontextmanager
async def fake_peer(path: Path, behave: Behaviour) -> AsyncIterator[FakePeer]:
    peer = FakePeer(str(path), behave)
    await peer.start()
    try:
        yield peer
    finally:
        peer.resume()
        await peer.stop()


async def until(holds: Callable[[], object], seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.002)
