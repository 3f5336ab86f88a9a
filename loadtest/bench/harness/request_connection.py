"""A connection on the event loop that asks and waits: one request at a time."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from moldau.broker.wire.schema import Message
from moldau.loadtest.bench.harness.frames import FrameProtocol
from moldau.loadtest.bench.harness.requests import decode, encode


class RequestConnection(FrameProtocol):
    def __init__(self) -> None:
        super().__init__()
        self._reply: asyncio.Future[bytes] | None = None
        self.received_at = 0.0  # the last response, by time.perf_counter
        self.error: Exception | None = None

    def frame_received(self, frame: bytes) -> None:
        self.received_at = time.perf_counter()
        self._resolve(frame)

    def _resolve(self, frame: bytes) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        self.error = exc or ConnectionError("the broker closed the connection")
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(self.error)

    def _expect_reply(self) -> asyncio.Future[bytes]:
        if self.error is not None:
            raise self.error
        self._reply = asyncio.get_running_loop().create_future()
        return self._reply

    async def ask(self, frame: bytes) -> bytes:
        """The response to an encoded request, without its length."""
        reply = self._expect_reply()
        self.send(frame)
        return await reply

    async def call(self, request: Message, version: int | None = None) -> Any:
        """The response; in the version that benchmarks send unless another is named."""
        frame = await self.ask(encode(request, version=version))
        return decode(type(request), frame, version)
