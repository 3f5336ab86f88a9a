"""The settings of `moldau serve`, and those that it passes to each worker and router.

These are values only: no parsing (`options.py`), no files or environment (`loading.py`), no
sockets. Every router imports this module, so it stays small.
"""

import os
from typing import Any, Literal, Self

import msgspec

from moldau.broker.settings.addresses import Address, Protocol
from moldau.broker.settings.options import HTTPS, MIB
from moldau.broker.settings.sasl import SaslSettings

HTTP_PORT_BELOW = 1000  # by default that far below the bootstrap port


class ConfigError(ValueError):
    """A setting that cannot be used. The message names the setting, where it was set, and why."""


class Endpoint(msgspec.Struct, frozen=True):
    """A broker as it is advertised to clients."""

    node_id: int
    host: str
    port: int


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The TLS settings of a listener: PEM files or texts, and the requirements for clients."""

    keystore: str | None = None  # a file: private key and certificate chain
    certificate_chain: str | None = None  # or both as texts
    key: str | None = None
    key_password: str | None = None
    truststore: str | None = None  # a file: the authorities of clients' certificates
    trusted: str | None = None  # or as text
    client_auth: str = "none"  # requested, required
    protocols: list[str] = []  # none: TLSv1.2 and TLSv1.3
    ciphers: list[str] = []
    principal_rules: str = "DEFAULT"
    reload_ms: int = 10_000


class Listener(msgspec.Struct, frozen=True, kw_only=True):
    """Where and how clients connect.

    A listener has a block of ports: routers at `port`, worker i at `port + 1 + i`. It is advertised
    as another such block, which is the same one unless ports are mapped in between.
    """

    name: str = "PLAINTEXT"
    protocol: Protocol = "PLAINTEXT"
    host: str = "127.0.0.1"
    port: int = 9092
    advertised_host: str = "127.0.0.1"
    advertised_port: int = 9092
    tls: TlsSettings | None = None
    sasl: SaslSettings | None = None

    @property
    def uses_tls(self) -> bool:
        return self.protocol in {"SSL", "SASL_SSL"}

    @property
    def uses_sasl(self) -> bool:
        return self.protocol in {"SASL_PLAINTEXT", "SASL_SSL"}

    @property
    def authenticates(self) -> bool:
        """True if it authenticates every client that it serves."""
        return self.uses_sasl or (self.tls is not None and self.tls.client_auth == "required")

    def ports(self, workers: int) -> range:
        """Every port to listen on, the routers' first."""
        return range(self.port, self.port + 1 + workers)

    def endpoints(self, workers: int, advertise: str) -> list[Endpoint]:
        """Return the brokers as they are advertised to clients of this listener."""
        host, first = self.advertised_host, self.advertised_port
        if advertise == "router":
            return [Endpoint(0, host, first)]
        return [Endpoint(index, host, first + 1 + index) for index in range(workers)]


class ProcessListener(msgspec.Struct, frozen=True):
    """A listener in one process: its port there, and the inherited sockets to serve on."""

    listener: Listener
    port: int
    brokers: list[Endpoint]  # that its clients hear of
    descriptors: list[int]  # one for each address of the host


class ProcessSockets(msgspec.Struct, frozen=True):
    """The descriptors that a process inherits: its unix socket, and those of its port by
    listener."""

    unix: int
    by_listener: list[list[int]]

    @property
    def all(self) -> list[int]:
        return [self.unix, *(each for listening in self.by_listener for each in listening)]


UNLIMITED = (1 << 31) - 1


class ConnectionLimits(msgspec.Struct, frozen=True):
    """How many TCP connections a process may have, and how many may be created in a second."""

    total: int = UNLIMITED
    per_ip: int = UNLIMITED
    overrides: dict[str, int] = {}  # in place of per_ip
    creation_rate: int = UNLIMITED


class ProcessSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that all processes of the broker share."""

    max_request_bytes: int = 100 * MIB
    inflight_bytes: int = 256 * MIB
    log_level: str = "info"
    log_json: bool = False


class WorkerLimits(ProcessSettings, frozen=True, kw_only=True):
    """The limits that `moldau serve` passes on to its workers unchanged."""

    tail_cache_bytes: int = 128 * MIB
    connection_inflight_bytes: int = 32 * MIB
    snapshot_entries: int = 1000


class _Serving:
    """The settings that workers and routers share."""

    __slots__ = ()
    unix_socket: int  # an inherited descriptor
    listeners: list[ProcessListener]  # at least one; the first is the default

    @property
    def port(self) -> int:
        return self.listeners[0].port

    @property
    def descriptors(self) -> list[int]:
        every = [self.unix_socket]
        for each in self.listeners:
            every += each.descriptors
        return every

    def endpoints(self, listener: str) -> list[Endpoint]:
        """Return the brokers as they are advertised to clients of a listener. Clients on a unix
        socket, without a listener, get those of the first one."""
        for each in self.listeners:
            if each.listener.name == listener:
                return each.brokers
        return self.listeners[0].brokers


class LeaseSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The lease of an external store, which all processes of this broker have together."""

    token: str
    holder: str  # JSON that names this broker
    lease_ms: int


class WorkerSettings(WorkerLimits, _Serving, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything a worker process needs: one JSON line on its standard input."""

    index: int
    unix_socket: int
    listeners: list[ProcessListener]
    workers: int
    redis_url: str
    # The embedded store's files: the one with its store id, the directory of its append-only file.
    store_files: tuple[str, str] | None = None
    worker_sockets: list[str] = []  # of all workers: transactions make them speak to each other
    data_dir: str
    broker_configs: dict[str, str] = {}
    lease: LeaseSettings | None = None  # None: no other broker can take over the store


class RouterSettings(
    ProcessSettings, _Serving, frozen=True, forbid_unknown_fields=True, kw_only=True
):
    """Everything a router process needs: one JSON line on its standard input."""

    index: int
    unix_socket: int
    listeners: list[ProcessListener]
    worker_sockets: list[str]
    max_idle_ms: int = 600_000
    connection_limits: ConnectionLimits = ConnectionLimits()
    quota_windows: tuple[int, int] = (11, 1)  # how many, and the seconds of each
    has_authorizer: bool = False  # then only workers know who may look up a coordinator
    has_telemetry: bool = False
    has_lease: bool = False  # workers say until when clients may be served


def _default_workers() -> int:
    return 2 if (os.cpu_count() or 1) >= 2 else 1


class ServeSettings(WorkerLimits, frozen=True, kw_only=True):
    """The settings of `moldau serve`, including defaults."""

    host: str = "127.0.0.1"
    port: int = 9092
    workers: int = msgspec.field(default_factory=_default_workers)
    routers: int = 1
    http: str | None = None
    console: Literal["on", "read-only", "off"] = "on"
    console_url: str | None = None
    redis: str | None = None
    standby: bool = False
    data_dir: str
    advertise: Literal["workers", "router"] = "workers"
    advertised_host: str | None = None
    listeners: list[Address] = []
    advertised_listeners: list[Address] = []
    listener_security_protocol_map: dict[str, Protocol] = {}
    secure: bool = False
    insecure: bool = False
    store_fsync: Literal["everysec", "always", "no"] = "everysec"
    store_maxmemory: int = 0
    store_min_free: int | None = None  # None: by the size of the disk
    spare_process: bool = True
    exit_with_parent: bool = False
    broker: dict[str, str] = {}
    # These follow from the above (`listeners.py`); the first one is the default.
    listening: list[Listener] = []

    def with_listeners(self, listening: list[Listener]) -> Self:
        first = listening[0]
        return msgspec.structs.replace(self, listening=listening, host=first.host, port=first.port)

    def worker_port(self, index: int) -> int:
        """Return the port of worker `index` on the first listener."""
        return self.port + 1 + index

    def http_address(self) -> tuple[str, int] | None:
        """The address of the HTTP process; None if it is off."""
        if self.http == "off" or (self.http is None and self.port <= HTTP_PORT_BELOW):
            return None
        if self.http is None:
            return "127.0.0.1", self.port - HTTP_PORT_BELOW
        host, _, port = self.http.removeprefix(HTTPS).rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def http_uses_tls(self) -> bool:
        return self.http is not None and self.http.startswith(HTTPS)

    def worker(
        self,
        index: int,
        *,
        redis_url: str,
        sockets: ProcessSockets,
        worker_sockets: list[str],
        store_files: tuple[str, str] | None = None,
        lease: LeaseSettings | None = None,
    ) -> WorkerSettings:
        """Return the settings of worker `index`."""
        return WorkerSettings(
            index=index,
            workers=self.workers,
            unix_socket=sockets.unix,
            listeners=self._served(sockets, 1 + index),
            redis_url=redis_url,
            store_files=store_files,
            worker_sockets=worker_sockets,
            data_dir=self.data_dir,
            broker_configs=self.broker,
            lease=lease,
            **self._shared(WorkerLimits),
        )

    def router(
        self,
        index: int,
        *,
        sockets: ProcessSockets,
        worker_sockets: list[str],
        max_idle_ms: int,
        connection_limits: ConnectionLimits = ConnectionLimits(),  # noqa: B008
        quota_windows: tuple[int, int] = (11, 1),
    ) -> RouterSettings:
        """Return the settings of router `index`."""
        return RouterSettings(
            index=index,
            unix_socket=sockets.unix,
            listeners=self._served(sockets, 0),
            worker_sockets=worker_sockets,
            max_idle_ms=max_idle_ms,
            connection_limits=connection_limits,
            quota_windows=quota_windows,
            has_authorizer=bool(self.broker.get("authorizer.class.name", "").strip()),
            has_lease=self.redis is not None,
            has_telemetry=self.broker.get("moldau.telemetry.enable", "").strip().lower() == "true",
            **self._shared(ProcessSettings),
        )

    def _served(self, sockets: ProcessSockets, place: int) -> list[ProcessListener]:
        """Return the listeners of a process that has the port at `place` of each block."""
        return [
            ProcessListener(
                listener,
                listener.port + place,
                listener.endpoints(self.workers, self.advertise),
                descriptors,
            )
            for listener, descriptors in zip(self.listening, sockets.by_listener, strict=True)
        ]

    def _shared(self, base: type[ProcessSettings]) -> dict[str, Any]:
        return {name: getattr(self, name) for name in base.__struct_fields__}
