"""The settings of the HTTP process: one JSON line on its standard input."""

from __future__ import annotations

import msgspec


class HttpSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    address: str  # as users write it, HOST:PORT
    listeners: list[int]  # inherited descriptors, bound by the supervisor
    control_socket: str  # of the supervisor
    worker_sockets: list[str]
    router_sockets: list[str]
    log_level: str = "info"
    log_json: bool = False
