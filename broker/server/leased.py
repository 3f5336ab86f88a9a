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

from moldau.broker.metrics.loop_clock import loop_clock
from moldau.broker.net.lease import Lease, boot_ns
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

LISTENER = 4  # among the arguments of `Connection`
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
    """A client's connection. What is looked at for each request is one clock and two numbers."""

    __slots__ = ("_lease",)

    def __init__(self, lease: Lease, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._lease = lease

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        Connection.connection_made(self, transport)
        if self._lease.is_over():
            self.abort()

    def buffer_updated(self, nbytes: int) -> None:
        if boot_ns() >= self._lease.until_ns:
            self.abort()
        else:
            Connection.buffer_updated(self, nbytes)

    def _flush(self) -> None:
        # The turn's own clock, which was read when its input arrived.
        if loop_clock.now_ns >= self._lease.until_monotonic_ns:
            self._out.clear()
            self.abort()
        Connection._flush(self)


class LeasedLocalConnection(Connection):
    """A connection over the unix socket: a router's for its client, another process's, a tool's."""

    __slots__ = ("_lease",)

    def __init__(self, lease: Lease, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._lease = lease

    def buffer_updated(self, nbytes: int) -> None:
        if boot_ns() >= self._lease.until_ns:
            self._lease.was_over = True
            if self.is_clients:
                self.abort()
                return
        Connection.buffer_updated(self, nbytes)

    def _serve(self, frame: bytearray) -> None:
        if self._lease.was_over and not _is_harmless(frame):
            self.abort()
        else:
            Connection._serve(self, frame)

    def _flush(self) -> None:
        if loop_clock.now_ns >= self._lease.until_monotonic_ns and self.is_clients:
            self._out.clear()
            self.abort()
        Connection._flush(self)


def _is_harmless(frame: bytearray) -> bool:
    try:
        return read_request_header(frame).api_key in HARMLESS
    except MalformedMessage:
        return False


def leased(lease: Lease) -> Callable[..., Connection]:
    """Make connections under a lease, in place of `Connection`."""

    def make(*arguments: Any, **options: Any) -> Connection:
        is_local = arguments[LISTENER] is None
        kind = LeasedLocalConnection if is_local else LeasedConnection
        return kind(lease, *arguments, **options)

    return make
