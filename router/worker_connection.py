"""A client's connection to one worker, over the worker's unix socket.

Every client connection has connections of its own to the workers it needs, opened when it first
needs them. A worker replies in the order of requests, so one connection for many clients would let
a parked Fetch of one client hold back the others. This way a client waits only for what it sent
before, exactly as on a direct connection, and back-pressure goes from socket to socket:

    the worker's socket is full   ──▶ the client is not read from
    the client reads slowly       ──▶ the worker's replies are not read

Correlation ids are passed on as they are.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from moldau.broker.private.table import PREAMBLE
from moldau.broker.security.identity import Identity
from moldau.router.reply_queue import WorkerReplies
from moldau.router.transport import PausableTransport

logger = logging.getLogger("moldau.router")


class Client(Protocol):
    """The interface of the client connection that owns a worker connection."""

    identity: Identity
    is_closed: bool

    def receive_replies(self, replies: WorkerReplies, data: bytes) -> None: ...

    def block(self, connection: WorkerConnection) -> None:
        """Nothing more can be sent to the worker for now."""

    def unblock(self, connection: WorkerConnection) -> None: ...

    def worker_unreachable(self, connection: WorkerConnection) -> None:
        """It could not connect; nothing was sent."""

    def worker_lost(self, connection: WorkerConnection) -> None: ...


class WorkerConnection(asyncio.Protocol):
    __slots__ = ("_client", "replies", "sent_without_reply", "transport", "worker")

    def __init__(self, client: Client, worker: int) -> None:
        self._client = client
        self.worker = worker
        self.transport = PausableTransport()
        self.replies = WorkerReplies(self.transport)
        # A Produce with acks=0 was sent. If it fails, the worker reports that by hanging up.
        self.sent_without_reply = False

    async def open(self, path: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_unix_connection(lambda: self, path)
        except OSError as fault:
            logger.warning("worker %d cannot be reached: %s", self.worker, fault)
            self._client.worker_unreachable(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        unsent = [PREAMBLE.request(self._client.identity), *self.transport.unsent]
        self.transport.attach(transport)
        if self._client.is_closed:
            self.transport.abort()
            return
        self.transport.write(b"".join(unsent))
        self._client.unblock(self)

    def pause_writing(self) -> None:
        self._client.block(self)

    def resume_writing(self) -> None:
        self._client.unblock(self)

    def data_received(self, data: bytes) -> None:
        self._client.receive_replies(self.replies, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport.detach()
        self._client.worker_lost(self)
