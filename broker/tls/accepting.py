"""Accepting connections that begin with a TLS handshake.

uvloop's own servers would drop a failed handshake without a word. Here it is logged with its
reason (bounded), takes at most HANDSHAKE_S, and no more than MAX_HANDSHAKES are under way: one
more, and the oldest gives way, so that clients that never finish keep no others out.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any

from broker import descriptors
from broker.accepting import Acceptor
from broker.limited_log import LimitedLog

logger = logging.getLogger("moldau.tls")

HANDSHAKE_S = 10.0
SHUTDOWN_S = 5.0
MAX_HANDSHAKES = 1024
REFUSED_S, MAX_REFUSED = 0.1, 1000

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
        """`refuses`: whether clients from an address are too many already, so that they need not
        cost a handshake."""
        self._protocol = protocol
        self._context = context
        self._refuses = refuses
        self._refused: set[socket.socket] = set()
        self._handshakes: dict[asyncio.Task[None], None] = {}  # in the order they began
        self.failures = 0
        super().__init__(listening, on_refused)
        self._log = LimitedLog(logger)

    def close(self) -> None:
        """Accept no more. Handshakes under way end too; connections that are made stay."""
        super().close()
        for handshake in list(self._handshakes):
            handshake.cancel()
        for refused in list(self._refused):
            self._turn_away(refused)

    def _accepted(self, accepted: socket.socket, address: Any) -> None:
        peer = str(address[0])
        if self._refuses(peer):
            self._refuse(accepted)
            return
        if len(self._handshakes) >= MAX_HANDSHAKES:
            oldest = next(iter(self._handshakes))
            del self._handshakes[oldest]
            oldest.cancel()
        task = self._loop.create_task(self._shake_hands(accepted, peer))
        self._handshakes[task] = None
        task.add_done_callback(self._ended)

    def _refuse(self, accepted: socket.socket) -> None:
        """Closed a moment later: a client that tries again at once is slowed down."""
        self._refused.add(accepted)
        if len(self._refused) > min(MAX_REFUSED, descriptors.reserved() // 4):
            self._turn_away(accepted)
        else:
            self._loop.call_later(REFUSED_S, self._turn_away, accepted)

    def _turn_away(self, accepted: socket.socket) -> None:
        self._refused.discard(accepted)
        accepted.close()

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
