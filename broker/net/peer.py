"""The identity of the peer of an accepted connection, as far as the socket tells.

Over a unix socket the peer is the operator, or another process of the broker, which sends a
preamble first. Only the broker's user can enter the runtime directory; the check of the user here
is a second lock, for a directory whose permissions were changed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import cast

from moldau.broker.logging_setup import LimitedLog
from moldau.broker.security.certificate import read_certificate
from moldau.broker.security.identity import ANONYMOUS, OPERATOR, Identity
from moldau.broker.security.principals import PrincipalRules
from moldau.broker.settings.processes import Listener

_log = LimitedLog(logging.getLogger("moldau.server"))

_CREDENTIALS = struct.Struct("3i")  # ucred: process, user, group
ROOT = 0


def identify(transport: asyncio.BaseTransport, listener: Listener | None) -> Identity | None:
    """The peer of a connection through `listener`, or over the unix socket if that is None.

    None: it must not be served; the reason is logged.
    """
    if listener is None:
        user = foreign_user(transport)
        if user is not None:
            _log.warning("user", "refused a connection to the unix socket by user %d", user)
            return None
        return OPERATOR
    address = transport.get_extra_info("peername")
    if not isinstance(address, tuple):
        return None  # it was reset before it was accepted
    host = str(address[0])
    principal: str | None = ANONYMOUS
    # With SASL the login decides, as in Kafka.
    if listener.tls is not None and not listener.uses_sasl:
        principal = _principal(transport, listener.tls.principal_rules, host)
    if principal is None:
        return None
    return Identity(principal, host, listener.name, port=int(address[1]))


def foreign_user(transport: asyncio.BaseTransport) -> int | None:
    """The user at the other end of a unix socket, if it is neither the broker's user nor root. None
    also if the platform does not tell."""
    option: int | None = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    ask = transport.get_extra_info("socket").getsockopt
    _, user, _ = _CREDENTIALS.unpack(
        cast("Callable[..., bytes]", ask)(socket.SOL_SOCKET, option, _CREDENTIALS.size)
    )
    return None if user in {os.geteuid(), ROOT} else user


def _principal(transport: asyncio.BaseTransport, rules: str, host: str) -> str | None:
    """The principal of the client's certificate, which the handshake has verified."""
    certificate: bytes | None = transport.get_extra_info("ssl_object").getpeercert(True)
    if not certificate:
        return ANONYMOUS
    try:
        subject = read_certificate(certificate).subject
    except ValueError as fault:
        _log.warning("certificate", "closing %s: its certificate cannot be read: %s", host, fault)
        return None
    principal = _parsed(rules).principal(subject)
    if principal is None:
        _log.warning(
            "rules", "closing %s: ssl.principal.mapping.rules has none for %s", host, subject
        )
    return principal


@lru_cache
def _parsed(rules: str) -> PrincipalRules:
    return PrincipalRules(rules)
