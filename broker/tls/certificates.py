"""The TLS context of a listener, rebuilt when its files change. New connections use the new
context, and open ones keep theirs. If the new files cannot be used, the old context stays."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import time
from typing import Any

from moldau.broker.security.certificate import Certificate
from moldau.broker.settings.processes import ConfigError, Listener, TlsSettings
from moldau.broker.tls.context import make_context
from moldau.broker.tls.expiry_warnings import ExpiryWarnings

logger = logging.getLogger("moldau.tls")


class SwappableContext(ssl.SSLContext):
    """The context that a server is given once. Each connection is made with the current one.

    Certificates could be loaded into the context in use, but client authorities could not be
    removed from it.
    """

    current: ssl.SSLContext

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        return self.current.wrap_bio(*arguments, **options)


class Certificates:
    """The certificates of one listener in this process."""

    def __init__(self, listener: Listener, *, tells_expiry: bool) -> None:
        """Raises ConfigError. `tells_expiry` is set in the one process that logs when they
        expire."""
        assert listener.tls is not None
        self._name = listener.name
        self._tls: TlsSettings = listener.tls
        self._files = [path for path in (self._tls.keystore, self._tls.truststore) if path]
        self._warnings = ExpiryWarnings() if tells_expiry else None
        self.context = SwappableContext(ssl.PROTOCOL_TLS_SERVER)
        self._seen = self._stamps()
        self._use(*make_context(self._tls))

    def _use(self, context: ssl.SSLContext, certificate: Certificate) -> None:
        self.context.current = context
        self._certificate = certificate
        if self._warnings is not None:
            logger.info(
                "listener %s shows the certificate of %s, which is valid until %s",
                self._name,
                certificate.subject or "no subject",
                _day(certificate.expires_at),
            )
            self._warnings.renewed()
            self.warn_of_expiry()

    @property
    def expiry(self) -> tuple[str, int]:
        """Return the listener's name, and when its certificate expires in seconds since 1970."""
        return self._name, self._certificate.expires_at

    def warn_of_expiry(self) -> None:
        warnings, certificate = self._warnings, self._certificate
        if warnings is not None and warnings.is_due(certificate.expires_at, time.time()):
            left = certificate.expires_at - time.time()
            logger.warning(
                "the certificate of listener %s %s on %s: replace it in %s, which is noticed "
                "without a restart",
                self._name,
                "expires" if left > 0 else "EXPIRED",
                _day(certificate.expires_at),
                self._tls.keystore or "ssl.keystore.certificate.chain",
            )

    # --- changes ---

    async def watch(self) -> None:
        """Watch the files for changes until cancelled."""
        while True:
            await asyncio.sleep(self._tls.reload_ms / 1000)
            if self._stamps() != self._seen:
                self.reload()
            self.warn_of_expiry()

    def reload(self) -> None:
        """Read the files again, whether or not they have changed."""
        # Take the stamps before reading: a change in between is noticed the next time.
        self._seen = self._stamps()
        try:
            made = make_context(self._tls)
        except ConfigError as error:
            logger.error(  # noqa: TRY400
                "listener %s goes on with the certificates it has: %s", self._name, error
            )
            return
        self._use(*made)
        logger.info("listener %s uses its new certificates", self._name)

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(path) for path in self._files]


def _stamp(path: str) -> tuple[int, int, int] | None:
    """Return values that change with the file, even if a link to it is replaced, as in
    Kubernetes."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _day(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
