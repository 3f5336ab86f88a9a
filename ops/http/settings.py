"""The settings of the HTTP process: one JSON line on its standard input."""

from __future__ import annotations

import msgspec

from moldau.broker.settings.processes import TlsSettings


class ConsoleLogin(msgspec.Struct, frozen=True):
    """How users log in to the console: as clients of this listener, with a password."""

    listener: str
    mechanisms: list[str]


class HttpSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    port: int  # of the broker: its bootstrap port
    address: str  # as users write it, HOST:PORT
    listeners: list[int]  # inherited descriptors, bound by the supervisor
    control_socket: str  # of the supervisor
    worker_sockets: list[str]
    router_sockets: list[str]
    tls: TlsSettings | None = None  # None: it speaks plain HTTP
    hosts: list[str] = []  # the names it answers to; empty: any
    is_proxied: bool = False  # browsers come through a proxy, which ends TLS
    console: str = "on"  # or off, or read-only
    why_no_console: str = ""
    login: ConsoleLogin | None = None  # None: whoever reaches the console is the operator
    router_ports: list[int] = []  # as they are advertised to clients
    log_level: str = "info"
    log_json: bool = False
