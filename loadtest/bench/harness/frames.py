"""An asyncio connection that sends and receives whole frames."""

from __future__ import annotations

import asyncio
from typing import cast

from moldau.broker.wire.frame import LENGTH


class FrameProtocol(asyncio.Protocol):
    """Subclasses take the frames, without their length."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._pending = b""

    def frame_received(self, frame: bytes) -> None:
        raise NotImplementedError

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        pending = self._pending + data if self._pending else data
        at, end = 0, len(pending)
        while end - at >= LENGTH.size:
            begins = at + LENGTH.size
            ends = begins + LENGTH.unpack_from(pending, at)[0]
            if ends > end:
                break
            self.frame_received(pending[begins:ends])
            at = ends
        self._pending = pending[at:]

    def send(self, frame: bytes) -> None:
        assert self._transport is not None
        self._transport.write(frame)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        if self._transport is not None:
            end(self._transport)


def end(transport: asyncio.Transport) -> None:
    """Close at once: a polite end of TLS would outlive the event loop of a run."""
    if transport.get_extra_info("ssl_object") is None:
        transport.close()
    else:
        transport.abort()
