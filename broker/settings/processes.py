"""Settings: what an operator may say to `moldau serve`, and what a worker is told.

An option has one name in four places: `--tail-cache-bytes` on the command line,
`MOLDAU_TAIL_CACHE_BYTES` in the environment, `tail-cache-bytes` in the TOML file, and the field
`tail_cache_bytes` here. A flag wins over the environment, the environment over the file, the file
over the default. The table `OPTIONS` of broker/settings/options.py feeds all of them and `--help`.

Only values, their parsing and their checks live here: no sockets, no processes, no Redis.
"""

import difflib
import os
import socket
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from broker.settings.options import ENV_PREFIX, MIB, OPTIONS, WILDCARD_HOSTS, Option

_BY_NAME = {option.name: option for option in OPTIONS}
BROKER_ENV_PREFIX = "MOLDAU_BROKER_"
# Variables that are ours but are not options of `serve`.
OTHER_ENV = frozenset({"MOLDAU_RUNTIME_DIR"})


class ConfigError(ValueError):
    """A setting that cannot be used; the message says which one, where it was set, and why."""


class Endpoint(msgspec.Struct, frozen=True):
    """A broker as clients are told of it."""

    node_id: int
    host: str
    port: int


class WorkerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All that one worker process is told: one JSON line on its standard input."""

    index: int
    workers: int
    host: str
    port: int
    unix_socket: str
    brokers: list[Endpoint]
    redis_url: str
    data_dir: str
    broker_configs: dict[str, str] = {}
    max_request_bytes: int = 100 * MIB
    tail_cache_bytes: int = 128 * MIB
    inflight_bytes: int = 256 * MIB
    connection_inflight_bytes: int = 32 * MIB
    snapshot_entries: int = 1000
    log_level: str = "info"
    log_json: bool = False


class RouterSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All that one router process is told: one JSON line on its standard input."""

    index: int
    host: str
    port: int
    unix_socket: str
    worker_sockets: list[str]
    brokers: list[Endpoint]
    max_request_bytes: int = 100 * MIB
    max_idle_ms: int = 600_000
    log_level: str = "info"
    log_json: bool = False


def _default_workers() -> int:
    return 2 if (os.cpu_count() or 1) >= 2 else 1


class ServeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What `moldau serve` was asked to do, defaults filled in."""

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
    max_request_bytes: int = 100 * MIB
    tail_cache_bytes: int = 128 * MIB
    inflight_bytes: int = 256 * MIB
    connection_inflight_bytes: int = 32 * MIB
    snapshot_entries: int = 1000
    log_level: str = "info"
    log_json: bool = False
    broker: dict[str, str] = {}

    def worker_port(self, index: int) -> int:
        return self.port + 1 + index

    def worker_address(self, index: int) -> tuple[str, int]:
        """Where a process of this machine reaches worker `index`."""
        loopback = {"0.0.0.0": "127.0.0.1", "::": "::1"}
        return loopback.get(self.host, self.host), self.worker_port(index)

    def ports(self) -> list[int]:
        """Every TCP port that is listened on, the bootstrap port first."""
        return [self.port, *(self.worker_port(index) for index in range(self.workers))]

    def host_for_clients(self) -> str:
        """The name clients are told: a wildcard is an address to listen on, not one to reach."""
        if self.advertised_host is not None:
            return self.advertised_host
        return socket.gethostname() if self.host in WILDCARD_HOSTS else self.host

    def endpoints(self) -> list[Endpoint]:
        """The brokers Metadata names."""
        host = self.host_for_clients()
        if self.advertise == "router":
            return [Endpoint(0, host, self.port)]
        return [Endpoint(index, host, self.worker_port(index)) for index in range(self.workers)]

    def worker(self, index: int, *, redis_url: str, unix_socket: str) -> WorkerSettings:
        """The settings of worker `index`."""
        return WorkerSettings(
            index=index,
            workers=self.workers,
            host=self.host,
            port=self.worker_port(index),
            unix_socket=unix_socket,
            brokers=self.endpoints(),
            redis_url=redis_url,
            data_dir=self.data_dir,
            broker_configs=self.broker,
            max_request_bytes=self.max_request_bytes,
            tail_cache_bytes=self.tail_cache_bytes,
            inflight_bytes=self.inflight_bytes,
            connection_inflight_bytes=self.connection_inflight_bytes,
            snapshot_entries=self.snapshot_entries,
            log_level=self.log_level,
            log_json=self.log_json,
        )

    def router(
        self, index: int, *, unix_socket: str, worker_sockets: list[str], max_idle_ms: int
    ) -> RouterSettings:
        """The settings of router `index`."""
        return RouterSettings(
            index=index,
            host=self.host,
            port=self.port,
            unix_socket=unix_socket,
            worker_sockets=worker_sockets,
            brokers=self.endpoints(),
            max_request_bytes=self.max_request_bytes,
            max_idle_ms=max_idle_ms,
            log_level=self.log_level,
            log_json=self.log_json,
        )


# --- gathering them: file, environment, flags --------------------------------------------------


def load_settings(
    flags: Mapping[str, object | None], env: Mapping[str, str], file: str | None = None
) -> ServeSettings:
    """Settings from command line flags (by field name), the environment and a TOML file.

    A flag that was not given is None or absent. `file` falls back on MOLDAU_CONFIG.
    """
    values: dict[str, Any] = {"data_dir": default_data_dir(env)}
    path = file or env.get(ENV_PREFIX + "CONFIG")
    broker: dict[str, str] = {}
    if path:
        document = _read_toml(path)
        broker.update(_broker_table(path, document.pop("broker", {})))
        for key, raw in document.items():
            option = _option_named(key, path)
            values[option.field] = _parse(option, raw, f"{path}: {key}")

    broker.update(_broker_env(env))
    _refuse_misspelt_env(env)
    for option in OPTIONS:
        text = env.get(option.env)
        if text is not None and text != "":
            values[option.field] = _parse(option, text, option.env)
        flag = flags.get(option.field)
        if flag is not None:
            values[option.field] = _parse(option, flag, f"--{option.name}")

    settings = ServeSettings(**values, broker=broker)
    _check(settings)
    return settings


def default_data_dir(env: Mapping[str, str]) -> str:
    base = env.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local", "share")
    return os.path.abspath(os.path.join(base, "moldau"))


def _parse(option: Option, raw: object, where: str) -> object:
    try:
        return option.parse(raw)
    except ValueError as error:
        if where == option.env and isinstance(raw, str) and raw.startswith("tcp://"):
            # Kubernetes sets MOLDAU_PORT=tcp://… for a service that is called "moldau".
            raise ConfigError(
                f"{where}: {raw!r} looks like a Kubernetes service link; "
                "set enableServiceLinks: false, or name the service differently"
            ) from None
        raise ConfigError(f"{where}: {error}") from None


def _read_toml(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def _option_named(key: str, path: str) -> Option:
    option = _BY_NAME.get(key)
    if option is not None:
        return option
    hint = near_miss(key.replace("_", "-"), [*_BY_NAME, "broker"])
    if not hint and "." in key:
        hint = "; Kafka's broker settings go under [broker]"
    raise ConfigError(f"{path}: unknown key {key!r}{hint}")


def near_miss(name: str, known: list[str]) -> str:
    """`; did you mean 'x'?` when a known name is close, else nothing."""
    matches = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def _refuse_misspelt_env(env: Mapping[str, str]) -> None:
    """A variable that is nearly ours is a slip; others (Kubernetes', other tools') are let be."""
    known = [option.env for option in OPTIONS] + [ENV_PREFIX + "CONFIG", *OTHER_ENV]
    suffixes = [name.removeprefix(ENV_PREFIX) for name in known]
    for name in sorted(env):
        if name in known or not name.startswith(ENV_PREFIX) or name.startswith(BROKER_ENV_PREFIX):
            continue
        matches = difflib.get_close_matches(
            name.removeprefix(ENV_PREFIX), suffixes, n=1, cutoff=0.82
        )
        if matches:
            raise ConfigError(f"unknown variable {name}; did you mean {ENV_PREFIX}{matches[0]}?")


def _broker_env(env: Mapping[str, str]) -> dict[str, str]:
    """MOLDAU_BROKER_NUM_PARTITIONS=3 is num.partitions=3, as Kafka's container images do it."""
    return {
        name.removeprefix(BROKER_ENV_PREFIX).lower().replace("_", "."): value
        for name, value in env.items()
        if name.startswith(BROKER_ENV_PREFIX)
    }


def _broker_table(path: str, table: object) -> dict[str, str]:
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: broker: expected a table, [broker]")
    return dict(_flatten(path, "", table))


def _flatten(path: str, prefix: str, table: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Kafka's dotted keys, whether they were quoted or (unquoted) became nested tables."""
    for key, value in table.items():
        name = prefix + key
        match value:
            case dict():
                yield from _flatten(path, name + ".", value)
            case bool():
                yield name, "true" if value else "false"
            case str() | int() | float():
                yield name, str(value)
            case list() if all(isinstance(item, str | int) for item in value):
                yield name, ",".join(str(item) for item in value)
            case _:
                raise ConfigError(f"{path}: broker.{name}: expected text, a number or true/false")


def _check(settings: ServeSettings) -> None:
    last = settings.worker_port(settings.workers - 1)
    if last > 65535:
        raise ConfigError(
            f"port {settings.port} with {settings.workers} workers needs ports up to {last}, "
            "past 65535: choose a lower port"
        )
    if settings.connection_inflight_bytes > settings.inflight_bytes:
        raise ConfigError(
            "connection-inflight-bytes is larger than inflight-bytes, what a whole worker may hold"
        )
