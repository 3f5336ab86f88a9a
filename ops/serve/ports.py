"""The TCP ports: checked before any process starts, then bound by the supervisor.

Two checks that binding alone would not make:

- Several routers share the bootstrap port with SO_REUSEPORT, which would silently share it with
  another broker of the same user too. So it is checked without.
- With SO_REUSEADDR a port can be bound that another process has bound and does not listen on yet.
"""

import contextlib
import errno
import os
import socket
import time

from moldau.broker.settings.processes import ConfigError


class PortTakenError(ConfigError):
    """A port that `serve` needs is in use."""


def check_ports(host: str, ports: list[int], *, patience_s: float = 0.0) -> None:
    """Raise PortTakenError for a port that is taken, ConfigError for a host that is not ours.

    With `patience_s`, wait that long for the processes of a predecessor to release them.
    """
    deadline = time.monotonic() + patience_s
    for port in ports:
        while True:
            problem = _problem(host, port)
            if problem is None:
                break
            if problem.errno != errno.EADDRINUSE or time.monotonic() >= deadline:
                raise _explained(host, port, ports, problem)
            time.sleep(0.02)


def bind_port(host: str, port: int, *, shared: bool = False) -> list[socket.socket]:
    """A socket for each address of the host, bound and not listening. Raises ConfigError."""
    try:
        return _bound(host, port, shared=shared)
    except OSError as error:
        raise _explained(host, port, [], error) from None


def _problem(host: str, port: int) -> OSError | None:
    try:
        for trial in _bound(host, port):
            with trial:
                trial.listen(1)
    except OSError as error:
        return error
    return None


def _bound(host: str, port: int, *, shared: bool = False) -> list[socket.socket]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    with contextlib.ExitStack() as opened:
        sockets: list[socket.socket] = []
        for family, kind, protocol, _, address in dict.fromkeys(found):
            bound = opened.enter_context(socket.socket(family, kind, protocol))
            # Connections of a predecessor in TIME_WAIT are no obstacle.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            bound.bind(address)
            sockets.append(bound)
        opened.pop_all()  # they stay open
    return sockets


def _explained(host: str, port: int, ports: list[int], problem: OSError) -> ConfigError:
    """`ports`: all that are needed in a row; empty: not known here."""
    if problem.errno == errno.EADDRINUSE and not ports:
        return PortTakenError(f"port {port} on {host} is taken: stop what listens there")
    if problem.errno == errno.EADDRINUSE:
        what = "the bootstrap port" if port == ports[0] else f"worker {ports.index(port) - 1}'s"
        return PortTakenError(
            f"port {port} ({what}) on {host} is taken: stop what listens there, "
            f"or choose another with --port or --listeners (needs {len(ports)} ports in a row)"
        )
    if isinstance(problem, socket.gaierror):
        return ConfigError(f"host {host}: {problem.strerror}")
    if problem.errno == errno.EACCES:
        return ConfigError(f"port {port} on {host}: not permitted; choose one above 1023")
    words = os.strerror(problem.errno) if problem.errno else str(problem)
    return ConfigError(f"cannot listen on {host}:{port}: {words}")
