"""Connections of a worker whose store other brokers can take over: served while the lease lasts.

The lease is looked at whenever bytes arrive and before replies are written, so that a process that
was stopped, or a machine that was suspended, neither takes a request nor answers one when it runs
again. Clients are cut off, so that they look for the broker that serves now. Over the unix socket
the supervisor's pings and the reports of the process are still answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from moldau.broker.net.lease import Lease
from moldau.broker.private.table import (
    CONNECTION_LIMITS,
    ENDED_SESSIONS,
    LEASE,
    METRICS,
    PREAMBLE,
)
from moldau.broker.server.connection import Connection
from moldau.broker.wire.apis import ApiKey
from moldau.broker.wire.frame import read_request_header
from moldau.broker.wire.primitives import MalformedMessage

# Requests that a process answers at any time.
HARMLESS = frozenset(
    (
        int(ApiKey.API_VERSIONS),
        PREAMBLE.key,
        METRICS.key,
        LEASE.key,
        CONNECTION_LIMITS.key,
        ENDED_SESSIONS.key,
    )
)


class LeasedConnection(Connection):
    __slots__ = ("_lease",)

    def __init__(self, lease: Lease, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._lease = lease

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self.is_clients and self._lease.is_over():
            self.abort()

    def buffer_updated(self, nbytes: int) -> None:
        if self._lease.is_over() and self.is_clients:
            self.abort()
            return
        super().buffer_updated(nbytes)

    def _serve(self, frame: bytearray) -> None:
        if self._lease.was_over and not _is_harmless(frame):
            self.abort()
            return
        super()._serve(frame)

    def _flush(self) -> None:
        if self.is_clients and self._lease.is_over():
            self._out.clear()
            self.abort()
        super()._flush()


def _is_harmless(frame: bytearray) -> bool:
    try:
        return read_request_header(frame).api_key in HARMLESS
    except MalformedMessage:
        return False


def leased(lease: Lease) -> Callable[..., Connection]:
    """Make connections under a lease, in place of `Connection`."""

    def make(*arguments: Any, **options: Any) -> Connection:
        return LeasedConnection(lease, *arguments, **options)

    return make
