"""The HTTP process: its address, bound here, and how to start it.

The broker never depends on it. An address that is taken costs a warning and the metrics.
"""

import ipaddress
import logging
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from broker.settings.processes import ConfigError, ServeSettings
from broker.settings.secure import ADMIN
from ops.http.settings import HttpSettings
from ops.serve.child_spec import ChildSpec
from ops.serve.ports import bind_port

logger = logging.getLogger("moldau.supervisor")

BACKLOG = 128
# Of a loopback address: other names that lead to it are not ours (DNS rebinding).
LOOPBACK_NAMES = ["localhost", "127.0.0.1", "::1"]
HTTP_ARGV: tuple[str, ...] = (sys.executable, "-m", "ops.http.process")


class HttpChild:
    """The sockets outlive the process: what connects while it is restarted waits for it."""

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


def console_login(settings: ServeSettings) -> str | None:
    """What browsers must send: "" if nothing; None: there is no login that would do.

    Whoever reaches the console may do everything, so it is open only where every user of this
    machine may do the same through a listener.
    """
    has_authorizer = bool(settings.broker.get("authorizer.class.name", "").strip())
    if not has_authorizer and not all(one.authenticates for one in settings.listening):
        return ""
    if not settings.secure:
        return None
    # Imported here: it takes libraries that others start without.
    from ops.secure.files import SecurityFiles

    password = SecurityFiles(settings.data_dir).password()
    return None if password is None else f"{ADMIN}:{password}"


def prepare(
    settings: ServeSettings, control: Path, workers: Sequence[Path], routers: Sequence[Path]
) -> HttpChild | None:
    """None: it is off, or its address cannot be had."""
    address = settings.http_address()
    if address is None:
        return None
    host, port = address
    try:
        sockets = bind_port(host, port)
        for each in sockets:
            each.listen(BACKLOG)  # what connects before the process serves waits for it
    except ConfigError as error:
        logger.warning(
            "no metrics, health and console: %s; choose another address with --http HOST:PORT, "
            "or none with --http off",
            error,
        )
        return None
    text = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    descriptors = [each.fileno() for each in sockets]
    login = console_login(settings)
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
                hosts=LOOPBACK_NAMES if is_loopback(host) else [],
                console="on" if is_loopback(host) and login is not None else "off",
                console_login=login or "",
                log_level=settings.log_level,
                log_json=settings.log_json,
            )
        ),
        pass_fds=tuple(descriptors),
    )
    return HttpChild(f"http://{text}", spec, sockets)
