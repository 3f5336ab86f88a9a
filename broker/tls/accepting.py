"""Accepting connections that begin with a TLS handshake.

uvloop's own servers would drop a failed handshake silently. Here its reason is logged, at a bounded
rate. `handshake_queue.py` decides when a handshake begins and how long it may take: connections
wait for their turn, and time in which the process was stopped or busy does not count.
"""

from __future__ import annotations

import asyncio
import logging
import select
import socket
import ssl
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from moldau.broker.logging_setup import LimitedLog
from moldau.broker.net import descriptors
from moldau.broker.net.accepting import Acceptor
from moldau.broker.tls import handshake_queue
from moldau.broker.tls.handshake_queue import HandshakeQueue

logger = logging.getLogger("moldau.tls")

SHUTDOWN_S = 5.0
# The system's receive buffer for a connection, as in Kafka (socket.receive.buffer.bytes). OpenSSL
# and uvloop keep buffers as large as the largest piece ever read; this limits them to 0.5 MB.
RECEIVE_BUFFER = 100 << 10
MAX_UNREAD = 1 << 16  # bytes that TLS keeps of a connection that is not read from; else 512 KB
NEVER_S = 86_400.0  # uvloop's own limit, which counts from the start
CHECK_S = 1.0
BEGUN_PER_TURN = 8  # handshakes; others have their turn in between
BYTES_RECEIVED = 128  # where Linux has them in tcp_info
REFUSED_S, MAX_REFUSED = 0.1, 1000

# OpenSSL's reasons, and what they mean for the operator.
_NOT_TLS = "it does not speak TLS: a plaintext client on a TLS port?"
_DISTRUST = "it does not trust our certificate: has it the right ssl.truststore or ssl.ca.location?"
_REASONS = {
    "WRONG_VERSION_NUMBER": _NOT_TLS,
    "HTTP_REQUEST": "it speaks HTTP, not TLS",
    "HTTPS_PROXY_REQUEST": "it speaks HTTP, not TLS",
    "UNKNOWN_PROTOCOL": _NOT_TLS,
    "BAD_RECORD_TYPE": _NOT_TLS,
    "UNEXPECTED_MESSAGE": _NOT_TLS,
    "UNSUPPORTED_PROTOCOL": "it speaks only versions of TLS that ssl.enabled.protocols leaves out",
    "NO_SHARED_CIPHER": "it has no cipher suite in common with us",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it showed no certificate, which ssl.client.auth requires",
    "TLSV1_ALERT_UNKNOWN_CA": _DISTRUST,
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": _DISTRUST,
    "SSLV3_ALERT_BAD_CERTIFICATE": _DISTRUST,
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "our certificate has expired",
}


class Unfinished:
    """A connection whose handshake has not ended."""

    __slots__ = ("peer", "received", "socket", "task")

    def __init__(self, accepted: socket.socket, peer: str) -> None:
        self.socket = accepted
        self.peer = peer
        self.received = 0  # bytes, when that was asked last
        self.task: asyncio.Task[None] | None = None

    def has_advanced(self) -> bool:
        if self.socket.fileno() < 0:
            return False
        received = self._received()
        if received > self.received:
            self.received = received
            return True
        poll = select.poll()
        poll.register(self.socket.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def _received(self) -> int:
        try:
            info = self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, BYTES_RECEIVED + 8)
        except (OSError, AttributeError):
            return 0  # not Linux
        return int.from_bytes(info[BYTES_RECEIVED : BYTES_RECEIVED + 8], sys.byteorder)


class TlsServer(Acceptor):
    """Accepts on one listening socket until it is closed."""

    def __init__(
        self,
        protocol: Callable[[], asyncio.BaseProtocol],
        listening: socket.socket,
        context: ssl.SSLContext,
        refuses: Callable[[str], bool] = lambda _: False,
        on_refused: Callable[[], None] = lambda: None,
    ) -> None:
        """`refuses` tells whether an address has too many connections already: then none of its
        clients costs a handshake."""
        self._protocol = protocol
        self._context = context
        self._refuses = refuses
        self._refused: set[socket.socket] = set()
        self._queue: HandshakeQueue[Unfinished] = HandshakeQueue()
        self._unfinished: set[Unfinished] = set()
        self._turn_is_due = False
        self.failures = 0
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        super().__init__(listening, on_refused)
        self._log = LimitedLog(logger)
        self._check_at = 0.0
        self._checking: asyncio.TimerHandle | None = None

    @property
    def unfinished(self) -> int:
        """The number of connections whose handshake has not ended."""
        return len(self._unfinished)

    def close(self) -> None:
        """Stop accepting. Handshakes in progress end too; established connections stay."""
        super().close()
        if self._checking is not None:
            self._checking.cancel()
        for each in list(self._unfinished):
            self._end(each)
        for refused in list(self._refused):
            self._turn_away(refused)

    def _accepted(self, accepted: socket.socket, address: Any) -> None:
        peer = str(address[0])
        if self._refuses(peer):
            self._refuse(accepted)
            return
        now = self._loop.time()
        each = Unfinished(accepted, peer)
        self._unfinished.add(each)
        loser = self._queue.accepted(each, now)
        self._loop.add_reader(accepted.fileno(), self._spoke, each)
        if loser is not None:
            self._end(loser)
        if self._checking is None:
            self._check_later(now)

    # --- turns ---

    def _spoke(self, each: Unfinished) -> None:
        self._loop.remove_reader(each.socket.fileno())
        self._queue.spoke(each)
        if self._queue.is_full and self._retry is None:
            self._pause(CHECK_S)
        self._begin()

    def _begin(self) -> None:
        if self._turn_is_due:
            return
        for _ in range(BEGUN_PER_TURN):
            each, loser = self._queue.begin(self._loop.time())
            if loser is not None:
                self._end(loser)
            if each is None:
                return
            each.task = self._loop.create_task(self._shake_hands(each))
            each.task.add_done_callback(partial(self._ended, each))
        if self._queue.has_ready:
            self._turn_is_due = True
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn_is_due = False
        self._begin()

    def _end(self, each: Unfinished) -> None:
        """End a connection before its handshake has ended."""
        self._queue.ended(each)
        self._unfinished.discard(each)
        if each.task is not None:
            each.task.cancel()
        elif each.socket.fileno() >= 0:
            self._loop.remove_reader(each.socket.fileno())
            each.socket.close()

    # --- time ---

    def _check_later(self, now: float) -> None:
        self._check_at = now + CHECK_S
        self._checking = self._loop.call_at(self._check_at, self._check)

    def _check(self) -> None:
        self._checking = None
        now = self._loop.time()
        self._queue.forgive(now - self._check_at)
        for each in self._queue.overdue(now, Unfinished.has_advanced):
            self._end(each)
            self._failed(
                "time", each.peer, f"no handshake within {handshake_queue.HANDSHAKE_S:g} s"
            )
        self._begin()
        if self._unfinished:
            self._check_later(now)

    # --- refused ---

    def _refuse(self, accepted: socket.socket) -> None:
        """Close a connection a moment later, which slows down clients that retry at once."""
        self._refused.add(accepted)
        if len(self._refused) > min(MAX_REFUSED, descriptors.reserved() // 4):
            self._turn_away(accepted)
        else:
            self._loop.call_later(REFUSED_S, self._turn_away, accepted)

    def _turn_away(self, accepted: socket.socket) -> None:
        self._refused.discard(accepted)
        accepted.close()

    # --- handshakes ---

    def _ended(self, each: Unfinished, task: asyncio.Task[None]) -> None:
        self._queue.ended(each)
        self._unfinished.discard(each)
        if not task.cancelled() and (fault := task.exception()) is not None:
            logger.error("a TLS connection could not be made", exc_info=fault)
        self._begin()

    async def _shake_hands(self, each: Unfinished) -> None:
        accepted, peer = each.socket, each.peer
        try:
            transport, _ = await self._loop.connect_accepted_socket(
                self._protocol,
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=NEVER_S,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
            # asyncio's types lack this method, which both event loops have.
            cast("Any", transport).set_read_buffer_limits(MAX_UNREAD)
        except ssl.SSLCertVerificationError as fault:
            self._failed("certificate", peer, f"its certificate: {fault.verify_message}")
        except ssl.SSLError as fault:
            reason = fault.reason or "no reason given"
            self._failed(reason, peer, _REASONS.get(reason) or reason.lower().replace("_", " "))
        except OSError:
            pass  # it hung up, like a port scan or a health check
        except asyncio.CancelledError:
            accepted.close()
            raise

    def _failed(self, kind: str, peer: str, why: str) -> None:
        self.failures += 1
        self._log.warning(kind, "closing %s: no TLS connection: %s", peer, why)
