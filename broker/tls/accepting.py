"""Accepting connections that begin with a TLS handshake.

uvloop's own servers would drop a failed handshake without a word. Here it is logged with its
reason (bounded), takes at most HANDSHAKE_S, and no more than MAX_HANDSHAKES are under way: one
more, and the oldest gives way, so that clients that never finish keep no others out.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable

from broker.limited_log import LimitedLog

logger = logging.getLogger("moldau.tls")

HANDSHAKE_S = 10.0
SHUTDOWN_S = 5.0
MAX_HANDSHAKES = 1024
REFUSED_S, MAX_REFUSED = 0.1, 1000
ACCEPTS_PER_TURN = 64
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
RETRY_S = 0.5

# What OpenSSL says, and what it means for the operator.
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


class TlsServer:
    """Accepts on one listening socket until it is closed."""

    def __init__(
        self,
        protocol: Callable[[], asyncio.BaseProtocol],
        listening: socket.socket,
        context: ssl.SSLContext,
        refuses: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """`refuses`: whether clients from an address are too many already, so that they need not
        cost a handshake."""
        self._protocol = protocol
        self._listening = listening
        self._context = context
        self._refuses = refuses
        self._refused: set[socket.socket] = set()
        self._loop = asyncio.get_running_loop()
        self._handshakes: dict[asyncio.Task[None], None] = {}  # in the order they began
        self._log = LimitedLog(logger)
        self.failures = 0
        self._retry: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._loop.add_reader(listening.fileno(), self._accept)

    def close(self) -> None:
        """Accept no more. Handshakes under way end too; connections that are made stay."""
        if self._listening.fileno() < 0:
            return
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._listening.fileno())
        self._listening.close()
        for handshake in list(self._handshakes):
            handshake.cancel()
        for refused in list(self._refused):
            self._turn_away(refused)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                accepted, address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as fault:
                if fault.errno not in NO_DESCRIPTORS:
                    raise
                self._log.warning("accept", "cannot accept connections: %s", fault.strerror)
                self._loop.remove_reader(self._listening.fileno())
                self._retry = self._loop.call_later(RETRY_S, self._accept_again)
                return
            if self._refuses(str(address[0])):
                self._refuse(accepted)
                continue
            accepted.setblocking(False)
            if len(self._handshakes) >= MAX_HANDSHAKES:
                oldest = next(iter(self._handshakes))
                del self._handshakes[oldest]
                oldest.cancel()
            task = self._loop.create_task(self._shake_hands(accepted, str(address[0])))
            self._handshakes[task] = None
            task.add_done_callback(self._ended)

    def _refuse(self, accepted: socket.socket) -> None:
        """Closed a moment later: a client that tries again at once is slowed down."""
        self._refused.add(accepted)
        if len(self._refused) > MAX_REFUSED:
            self._turn_away(accepted)
        else:
            self._loop.call_later(REFUSED_S, self._turn_away, accepted)

    def _turn_away(self, accepted: socket.socket) -> None:
        self._refused.discard(accepted)
        accepted.close()

    def _accept_again(self) -> None:
        self._loop.add_reader(self._listening.fileno(), self._accept)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._handshakes.pop(task, None)
        if not task.cancelled() and (fault := task.exception()) is not None:
            logger.error("a TLS connection could not be made", exc_info=fault)

    async def _shake_hands(self, accepted: socket.socket, peer: str) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._protocol,
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        except ssl.SSLCertVerificationError as fault:
            self._failed("certificate", peer, f"its certificate: {fault.verify_message}")
        except ssl.SSLError as fault:
            reason = fault.reason or "no reason given"
            self._failed(reason, peer, _REASONS.get(reason) or reason.lower().replace("_", " "))
        except TimeoutError:
            self._failed("time", peer, f"no handshake within {HANDSHAKE_S:g} s")
        except ConnectionAbortedError:
            self._failed("time", peer, f"no handshake within {HANDSHAKE_S:g} s")
        except OSError:
            pass  # it hung up: a port scan, a health check
        except asyncio.CancelledError:
            accepted.close()
            raise

    def _failed(self, kind: str, peer: str, why: str) -> None:
        self.failures += 1
        self._log.warning(kind, "closing %s: no TLS connection: %s", peer, why)
