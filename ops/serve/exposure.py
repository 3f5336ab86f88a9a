"""Not open by accident: other machines are served with authentication, or on purpose."""

import ipaddress
import logging
import os
import socket
from collections.abc import Sequence

from moldau.broker.settings.processes import ConfigError, Listener

logger = logging.getLogger("moldau.supervisor")

CONTAINERS = ("/.dockerenv", "/run/.containerenv")  # root has no special rights there


def check_exposure(listeners: Sequence[Listener], *, insecure: bool) -> None:
    """Raises ConfigError for a listener that lets anybody on the network in."""
    for listener in listeners:
        if listener.authenticates or is_loopback(listener.host):
            continue
        what = f"listener {listener.name} on {listener.host}:{listener.port} serves other machines"
        if insecure:
            logger.warning("%s without authentication (--insecure)", what)
            continue
        raise ConfigError(
            f"{what}, and does not authenticate its clients: anybody who can reach it could read "
            "and write everything. Start with --secure, which sets up TLS, users and passwords; or "
            "choose a protocol with SASL, or SSL with ssl.client.auth=required; or listen on "
            "127.0.0.1; or say --insecure if the network is trusted"
        )


def warn_of_root(listeners: Sequence[Listener]) -> None:
    """Root may serve its own machine; for others an account with less to lose is better."""
    if os.getuid() != 0 or any(map(os.path.exists, CONTAINERS)):
        return
    if not all(is_loopback(listener.host) for listener in listeners):
        logger.warning(
            "serving other machines as root: better run it as a user of its own, as the unit "
            "ops/moldau.service does"
        )


def is_loopback(host: str) -> bool:
    """Whether every address of a host is on the loopback interface."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return True  # it cannot be listened on either, and binding it says why
    return all(
        ipaddress.ip_address(str(each[4][0]).partition("%")[0]).is_loopback for each in found
    )
