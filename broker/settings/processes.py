"""The settings of processes: of `moldau serve`, and what it passes to each worker and router.

Values only: no parsing (`options.py`), no files or environment (`loading.py`), no sockets. Every
router imports this module, so it stays small.
"""

import os
import socket
from typing import Any, Literal

import msgspec

from broker.settings.options import MIB, WILDCARD_HOSTS


class ConfigError(ValueError):
    """A setting that cannot be used. The message names the setting, where it was set, and why."""


class Endpoint(msgspec.Struct, frozen=True):
    """A broker as it is advertised to clients."""

    node_id: int
    host: str
    port: int


class ProcessSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What every process of the broker has in common."""

    max_request_bytes: int = 100 * MIB
    log_level: str = "info"
    log_json: bool = False


class WorkerLimits(ProcessSettings, frozen=True, kw_only=True):
    """What `moldau serve` passes on to its workers unchanged."""

    tail_cache_bytes: int = 128 * MIB
    inflight_bytes: int = 256 * MIB
    connection_inflight_bytes: int = 32 * MIB
    snapshot_entries: int = 1000


class WorkerSettings(WorkerLimits, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything a worker process needs: one JSON line on its standard input."""

    index: int
    workers: int
    host: str
    port: int
    listeners: list[int]  # inherited descriptors: its port on each address, its unix socket
    brokers: list[Endpoint]
    redis_url: str
    # Of the embedded store: the file with its history token, the directory of its append-only file.
    store_files: tuple[str, str] | None = None
    worker_sockets: list[str] = []  # of all workers: transactions make them speak to each other
    data_dir: str
    broker_configs: dict[str, str] = {}


class RouterSettings(ProcessSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything a router process needs: one JSON line on its standard input."""

    index: int
    host: str
    port: int
    listeners: list[int]  # as a worker's
    worker_sockets: list[str]
    brokers: list[Endpoint]
    max_idle_ms: int = 600_000


def _default_workers() -> int:
    return 2 if (os.cpu_count() or 1) >= 2 else 1


class ServeSettings(WorkerLimits, frozen=True, kw_only=True):
    """The settings of `moldau serve`, defaults filled in."""

    host: str = "127.0.0.1"
    port: int = 9092
    workers: int = msgspec.field(default_factory=_default_workers)
    routers: int = 1
    redis: str | None = None
    data_dir: str
    advertise: Literal["workers", "router"] = "workers"
    advertised_host: str | None = None
    store_fsync: Literal["everysec", "always", "no"] = "everysec"
    store_maxmemory: int = 0
    spare_process: bool = True
    broker: dict[str, str] = {}

    def worker_port(self, index: int) -> int:
        return self.port + 1 + index

    def worker_address(self, index: int) -> tuple[str, int]:
        """Where a process on this machine reaches worker `index`."""
        loopback = {"0.0.0.0": "127.0.0.1", "::": "::1"}
        return loopback.get(self.host, self.host), self.worker_port(index)

    def ports(self) -> list[int]:
        """Every TCP port to listen on, the bootstrap port first."""
        return [self.port, *(self.worker_port(index) for index in range(self.workers))]

    def host_for_clients(self) -> str:
        """The host that is advertised: a wildcard is an address to listen on, not one to reach."""
        if self.advertised_host is not None:
            return self.advertised_host
        return socket.gethostname() if self.host in WILDCARD_HOSTS else self.host

    def endpoints(self) -> list[Endpoint]:
        """The brokers in Metadata."""
        host = self.host_for_clients()
        if self.advertise == "router":
            return [Endpoint(0, host, self.port)]
        return [Endpoint(index, host, self.worker_port(index)) for index in range(self.workers)]

    def worker(
        self,
        index: int,
        *,
        redis_url: str,
        listeners: list[int],
        worker_sockets: list[str],
        store_files: tuple[str, str] | None = None,
    ) -> WorkerSettings:
        """The settings of worker `index`."""
        return WorkerSettings(
            index=index,
            workers=self.workers,
            host=self.host,
            port=self.worker_port(index),
            listeners=listeners,
            brokers=self.endpoints(),
            redis_url=redis_url,
            store_files=store_files,
            worker_sockets=worker_sockets,
            data_dir=self.data_dir,
            broker_configs=self.broker,
            **self._shared(WorkerLimits),
        )

    def router(
        self, index: int, *, listeners: list[int], worker_sockets: list[str], max_idle_ms: int
    ) -> RouterSettings:
        """The settings of router `index`."""
        return RouterSettings(
            index=index,
            host=self.host,
            port=self.port,
            listeners=listeners,
            worker_sockets=worker_sockets,
            brokers=self.endpoints(),
            max_idle_ms=max_idle_ms,
            **self._shared(ProcessSettings),
        )

    def _shared(self, base: type[ProcessSettings]) -> dict[str, Any]:
        return {name: getattr(self, name) for name in base.__struct_fields__}
