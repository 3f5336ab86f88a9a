"""One login of a client, relayed to a worker over its own connection.

The worker knows the users; the state of the login lives in its connection, as on a direct port.
After every token the router asks who has logged in, so that it knows when, and as whom.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol, cast

from moldau.broker.private.api import answer_body
from moldau.broker.private.table import PREAMBLE, WHO_AM_I
from moldau.broker.security.identity import Identity
from moldau.broker.wire.apis import APIS, ApiKey
from moldau.broker.wire.frame import LENGTH, LENGTH_SIZE, request_frame
from moldau.broker.wire.framing import MIN_RESPONSE, InvalidFrameSize, frame_size
from moldau.broker.wire.messages.sasl_handshake import SaslHandshakeRequest

logger = logging.getLogger("moldau.router")

MAX_REPLY = 1 << 20
_QUESTION = WHO_AM_I.request(None)


class Asker(Protocol):
    def answered(self, reply: bytes, identity: Identity) -> None:
        """Take the worker's reply to SaslAuthenticate (with its length), and the client's identity
        now."""

    def relay_lost(self, reply: bytes) -> None:
        """The worker has hung up; `reply` is its last one, which tells the reason, or empty."""


class LoginRelay(asyncio.Protocol):
    def __init__(self, asker: Asker, identity: Identity, mechanism: str) -> None:
        self._asker: Asker | None = asker
        handshake = SaslHandshakeRequest(mechanism)
        self._unsent = PREAMBLE.request(identity) + request_frame(
            APIS[ApiKey.SASL_HANDSHAKE], 1, 0, None, handshake
        )
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._has_begun = False  # the handshake was answered
        self._reply = b""  # to the last token

    async def open(self, path: str) -> None:
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: self, path)
        except OSError as fault:
            logger.warning("a login cannot be relayed: %s", fault)
            self._lost()

    def send(self, request: bytes) -> None:
        """Send a SaslAuthenticate request, with its length."""
        if self._transport is None:
            self._unsent += request + _QUESTION
        else:
            self._transport.write(request + _QUESTION)

    def close(self) -> None:
        self._asker = None
        if self._transport is not None:
            self._transport.abort()

    # --- the connection ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        if self._asker is None:
            self._transport.abort()
            return
        self._transport.write(self._unsent)
        self._unsent = b""

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        while len(received) >= LENGTH_SIZE and self._asker is not None:
            try:
                size = frame_size(received, 0, MIN_RESPONSE, MAX_REPLY)
            except InvalidFrameSize as fault:
                logger.critical("closing a client: a worker answered its login with %s", fault)
                self._lost()
                return
            end = LENGTH_SIZE + size
            if len(received) < end:
                return
            frame = bytes(received[:end])
            del received[:end]
            self._take(frame)

    def _take(self, frame: bytes) -> None:
        if not self._has_begun:
            self._has_begun = True
        elif not self._reply:
            self._reply = frame
        else:
            reply, self._reply = self._reply, b""
            assert self._asker is not None
            try:
                identity = WHO_AM_I.read_answer(answer_body(frame))
            except ValueError as fault:
                logger.critical("closing a client: a worker does not say who it is: %s", fault)
                self._lost()
            else:
                self._asker.answered(reply, identity)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost()

    def _lost(self) -> None:
        asker = self._asker
        self.close()
        if asker is not None:
            asker.relay_lost(self._reply)


def framed(body: bytes) -> bytes:
    return LENGTH.pack(len(body)) + body
