"""The HTTP process: its address, bound here, and how to start it.

The broker never depends on it. An address that is taken costs a warning and the metrics.
"""

import ipaddress
import logging
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from moldau.broker.settings.processes import ConfigError, Listener, ServeSettings, TlsSettings
from moldau.ops.http.settings import ConsoleLogin, HttpSettings
from moldau.ops.serve.child_spec import ChildSpec
from moldau.ops.serve.ports import bind_port

logger = logging.getLogger("moldau.supervisor")

BACKLOG = 128
# Of a loopback address: other names that lead to it are not ours (DNS rebinding).
LOOPBACK_NAMES = ["localhost", "127.0.0.1", "::1"]
PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
NO_PASSWORDS = (
    "clients are known by certificates, tokens or addresses here, and browsers log in with a "
    "password: add a listener with SASL (PLAIN or SCRAM), on loopback if no client needs it"
)
NOT_ENCRYPTED = (
    "passwords would be readable on the way: serve it over TLS with --http https://HOST:PORT, or "
    "on a loopback address, or behind a proxy that ends TLS with --console-url https://HOST"
)
OPEN = (
    "without logins whoever reaches it could do everything: it needs a loopback address, or users "
    "(--secure)"
)
HTTP_ARGV: tuple[str, ...] = (sys.executable, "-m", "moldau.ops.http.process")


class HttpChild:
    """The sockets outlive the process: connections wait while it is restarted."""

    def __init__(self, url: str, spec: ChildSpec, sockets: Sequence[socket.socket]) -> None:
        self.url = url
        self.spec = spec
        self._sockets = sockets

    def close(self) -> None:
        for each in self._sockets:
            each.close()


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class ConsoleAccess(NamedTuple):
    """Who may use the console: those who log in, the operator (`login` is None), or none."""

    mode: str  # on, read-only, off
    login: ConsoleLogin | None = None
    reason: str = ""  # why it is off


def console_access(settings: ServeSettings) -> ConsoleAccess:
    """Where clients log in with a password, browsers do. Otherwise whoever reaches the console may
    do everything, so it is open only where every user of this machine may do the same through a
    listener, and on loopback addresses only."""
    address = settings.http_address()
    if settings.console == "off" or address is None:
        return ConsoleAccess("off", reason="it was turned off (--console off)")
    login = console_login(settings.listening)
    is_local = is_loopback(address[0])
    if login is not None:
        if is_local or settings.http_uses_tls or is_proxied(settings):
            return ConsoleAccess(settings.console, login)
        return ConsoleAccess("off", reason=NOT_ENCRYPTED)
    has_authorizer = bool(settings.broker.get("authorizer.class.name", "").strip())
    if has_authorizer or all(one.authenticates for one in settings.listening):
        return ConsoleAccess("off", reason=NO_PASSWORDS)
    if settings.console_url is None:
        is_allowed = is_local
    else:  # of this machine: a port of a container, or a tunnel; --insecure says that it is meant
        is_allowed = settings.insecure and not is_proxied(settings)
    if not is_allowed:
        return ConsoleAccess("off", reason=OPEN)
    return ConsoleAccess(settings.console)


def is_proxied(settings: ServeSettings) -> bool:
    """Whether browsers reach the console through a proxy that ends TLS."""
    return (settings.console_url or "").startswith("https://")


def console_login(listeners: Sequence[Listener]) -> ConsoleLogin | None:
    """Use the first listener whose clients log in with a password; all have the same users."""
    for listener in listeners:
        if listener.uses_sasl and listener.sasl is not None:
            found = [each for each in listener.sasl.mechanisms if each in PASSWORD_MECHANISMS]
            if found:
                return ConsoleLogin(listener.name, found)
    return None


def served_names(settings: ServeSettings, host: str) -> list[str]:
    """The names that the console answers to; empty: any."""
    public = urlsplit(settings.console_url or "").hostname
    if is_loopback(host):
        return [*LOOPBACK_NAMES, *([public] if public else [])]
    return [public] if public else []


def http_tls(settings: ServeSettings) -> TlsSettings | None:
    """The certificate of the first listener that has one. Raises ConfigError."""
    if not settings.http_uses_tls:
        return None
    for listener in settings.listening:
        if listener.tls is not None:
            # Certificates of browsers are not asked for: users log in with a password.
            return msgspec.structs.replace(
                listener.tls, client_auth="none", truststore=None, trusted=None
            )
    raise ConfigError(
        f"http {settings.http}: no listener has a certificate for it: start with --secure, or set "
        "ssl.keystore.location and a listener with SSL or SASL_SSL"
    )


def prepare(
    settings: ServeSettings, control: Path, workers: Sequence[Path], routers: Sequence[Path]
) -> HttpChild | None:
    """None: it is off, or its address cannot be had. Raises ConfigError."""
    address = settings.http_address()
    if address is None:
        return None
    host, port = address
    tls = http_tls(settings)
    try:
        sockets = bind_port(host, port)
        for each in sockets:
            each.listen(BACKLOG)  # connections wait until the process serves
    except (ConfigError, OSError) as error:
        logger.warning(
            "no metrics, health and console: %s; choose another address with --http HOST:PORT, "
            "or none with --http off",
            error,
        )
        return None
    text = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    descriptors = [each.fileno() for each in sockets]
    access = console_access(settings)
    if access.mode == "off" and settings.console != "off":
        logger.info("no console: %s", access.reason)
    spec = ChildSpec(
        role="http",
        index=0,
        port=port,
        argv=HTTP_ARGV,
        env={"PYTHONSAFEPATH": "1"},
        stdin_line=msgspec.json.encode(
            HttpSettings(
                port=settings.port,
                address=text,
                listeners=descriptors,
                control_socket=str(control),
                worker_sockets=[str(each) for each in workers],
                router_sockets=[str(each) for each in routers],
                tls=tls,
                hosts=served_names(settings, host),
                is_proxied=is_proxied(settings),
                console=access.mode,
                why_no_console=access.reason,
                login=access.login,
                router_ports=[each.advertised_port for each in settings.listening],
                log_level=settings.log_level,
                log_json=settings.log_json,
            )
        ),
        pass_fds=tuple(descriptors),
    )
    scheme = "http" if tls is None else "https"
    return HttpChild(f"{scheme}://{text}", spec, sockets)
