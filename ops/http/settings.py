"""The settings of the HTTP process: one JSON line on its standard input."""

from __future__ import annotations

import msgspec


class HttpSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    port: int  # of the broker: its bootstrap port
    address: str  # as users write it, HOST:PORT
    listeners: list[int]  # inherited descriptors, bound by the supervisor
    control_socket: str  # of the supervisor
    worker_sockets: list[str]
    router_sockets: list[str]
    hosts: list[str] = []  # the names it answers to; empty: any
    console: str = "on"  # or off, or read-only
    console_login: str = ""  # USER:PASSWORD that browsers must send; empty: none
    log_level: str = "info"
    log_json: bool = False
