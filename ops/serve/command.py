"""`moldau serve`: settings in, everything checked, processes described, the supervisor run.

Nothing is started before what can be checked has been: settings, ports, the data directory, the
store. Whatever is wrong then ends `serve` with one message and exit code 3.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from broker.logging_setup import set_up_logging
from broker.placement import slots_of
from broker.process import BOOT_FAILED, BootFailure
from broker.settings.kafka import BrokerConfig
from broker.settings.kafka.config_key import InvalidConfig
from broker.settings.kafka.validate import validate_static
from broker.settings.loading import load_settings
from broker.settings.options import OPTIONS
from broker.settings.processes import ConfigError, ServeSettings
from ops.serve import embedded_store
from ops.serve.children import ChildSpec
from ops.serve.ports import check_ports
from ops.serve.runtime import (
    LockedError,
    check_socket_path,
    control_socket,
    ensure_runtime_dir,
    router_socket,
    take_lock,
    worker_socket,
)
from ops.serve.supervisor import Stages, Supervisor

if TYPE_CHECKING:
    from ops.serve.claim import Claim

logger = logging.getLogger("moldau.supervisor")

WORKER_ARGV: tuple[str, ...] = (sys.executable, "-m", "broker.worker")
ROUTER_ARGV: tuple[str, ...] = (sys.executable, "-m", "router.router")
# A predecessor that was killed leaves its socket behind, and its workers may need a moment.
PREDECESSOR_PATIENCE_S = 5.0

# What SIGHUP may change while running: what workers are told, and how much is logged.
RELOADABLE = (
    "advertise",
    "advertised_host",
    "max_request_bytes",
    "tail_cache_bytes",
    "inflight_bytes",
    "connection_inflight_bytes",
    "snapshot_entries",
    "log_level",
    "log_json",
    "broker",
)

DESCRIPTION = """\
Start a broker: a router at the port clients know, workers behind it that any Kafka client can talk
to directly too, and the store that keeps their logs.
It prints one line, `moldau ready …`, when clients can connect.
"""

EXAMPLES = """\
examples:
  moldau serve                                   127.0.0.1:9092, an embedded store
  moldau serve --port 19092 --workers 4 --data-dir ./data
  moldau serve --host 0.0.0.0 --advertised-host broker.example.com
  moldau serve --redis redis://:secret@10.0.0.5:6379/0
  moldau serve --config moldau.toml

Every option is also an environment variable (MOLDAU_PORT=19092) and a key of the TOML file:
  port = 19092
  store-fsync = "always"
  [broker]                                       # Kafka's broker settings
  "num.partitions" = 3
A flag wins over the environment, the environment over the file.

signals:
  SIGTERM, SIGINT   answer what is in flight, stop everything, exit 0 within 10 s
  SIGHUP            read the file again; processes that are to be told something new restart one
                    after another (ports, store and number of processes need a new start)

exit codes: 0 stopped as asked, 2 wrong usage, 3 could not start (the message says why)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    parser.add_argument("--config", metavar="FILE", help="TOML file with the same options")
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in OPTIONS:
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        # Checked with all the others in load_settings, so that all are refused in the same words.
        groups[option.group].add_argument(
            f"--{option.name}", metavar=option.metavar, help=option.help
        )


def run(arguments: argparse.Namespace) -> int:
    try:
        settings = read_settings(arguments)
        _log_as(settings)
        _serve(arguments, settings)
    except (ConfigError, BootFailure) as error:
        print(f"moldau: {error}", file=sys.stderr)
        return BOOT_FAILED
    return 0


def read_settings(arguments: argparse.Namespace) -> ServeSettings:
    """Settings from flags, environment and file. Raises ConfigError."""
    settings = load_settings(vars(arguments), os.environ, arguments.config)
    try:
        validate_static(settings.broker)
    except InvalidConfig as error:
        raise ConfigError(f"[broker]: {error}") from None
    return settings


def _log_as(settings: ServeSettings) -> None:
    set_up_logging("supervisor", settings.log_level, json=settings.log_json)


def _serve(arguments: argparse.Namespace, settings: ServeSettings) -> None:
    runtime_dir = ensure_runtime_dir(os.environ)
    control = control_socket(runtime_dir, settings.port)
    sockets = [worker_socket(runtime_dir, settings.port, i) for i in range(settings.workers)]
    pinged = [router_socket(runtime_dir, settings.port, i) for i in range(settings.routers)]
    for path in (control, *sockets, *pinged):
        check_socket_path(path)
    _claim_ports(settings, runtime_dir, control)

    stages: list[list[ChildSpec]] = []
    background: Sequence[Any] = ()
    claim: Claim | None = None
    if settings.redis is None:
        store = embedded_store.prepare(settings, runtime_dir)
        url, background = store.url, store.background
        stages.append([store.spec])
        facts = {
            "url": url,
            "kind": "embedded",
            "data_dir": settings.data_dir,
            "fsync": settings.store_fsync,
            "maxmemory": settings.store_maxmemory,
        }
    else:
        url = settings.redis
        facts = _external_store(url)
        claim = _claim(url, settings.port)
        background = (claim.keep,)

    def serving() -> list[ChildSpec]:
        # One stage: a router is ready when the workers are, and both are told to stop at once, so
        # that what is parked in a worker is answered through the router.
        return worker_specs(settings, url, sockets) + router_specs(settings, sockets, pinged)

    stages.append(serving())

    def reload() -> Stages:
        nonlocal settings
        settings = reloaded(settings, read_settings(arguments))
        _log_as(settings)
        return [serving()]

    async def supervise() -> None:
        await Supervisor(
            stages,
            port=settings.port,
            control_path=control,
            store=facts,
            on_ready=lambda: print(ready_line(settings, facts), flush=True),
            reload=reload,
            background=background,
        ).run()

    try:
        asyncio.run(supervise())
    finally:
        if claim is not None:
            claim.release()
        for path in (*sockets, *pinged):
            path.unlink(missing_ok=True)


def worker_specs(settings: ServeSettings, url: str, sockets: Sequence[Path]) -> list[ChildSpec]:
    """How to start the workers. What they are told, the store's password included, goes to their
    standard input: a command line is everybody's to read."""
    return [
        ChildSpec(
            role="worker",
            index=index,
            port=settings.worker_port(index),
            slots=tuple(slots_of(index, settings.workers)),
            argv=WORKER_ARGV,
            # Not the current directory: it may hold a package called `broker` of its own.
            env={**embedded_store.MALLOC_ENV, "PYTHONSAFEPATH": "1"},
            stdin_line=msgspec.json.encode(
                settings.worker(index, redis_url=url, unix_socket=str(path))
            ),
            ping=settings.worker_address(index),
        )
        for index, path in enumerate(sockets)
    ]


def router_specs(
    settings: ServeSettings, sockets: Sequence[Path], pinged: Sequence[Path]
) -> list[ChildSpec]:
    """How to start the routers."""
    max_idle_ms = BrokerConfig(settings.broker).get_int("connections.max.idle.ms")
    return [
        ChildSpec(
            role="router",
            index=index,
            port=settings.port,
            argv=ROUTER_ARGV,
            env={**embedded_store.MALLOC_ENV, "PYTHONSAFEPATH": "1"},
            stdin_line=msgspec.json.encode(
                settings.router(
                    index,
                    unix_socket=str(path),
                    worker_sockets=[str(each) for each in sockets],
                    max_idle_ms=max_idle_ms,
                )
            ),
            ping=str(path),
        )
        for index, path in enumerate(pinged)
    ]


def reloaded(before: ServeSettings, after: ServeSettings) -> ServeSettings:
    """`before` with what may change while running; the rest waits for a new start."""
    names = ServeSettings.__struct_fields__
    for name in names:
        if name not in RELOADABLE and getattr(before, name) != getattr(after, name):
            logger.warning("%s changed: needs a new start of serve", name.replace("_", "-"))
    changes = {name: getattr(after, name) for name in RELOADABLE}
    return msgspec.structs.replace(before, **changes)


def ready_line(settings: ServeSettings, store: dict[str, Any]) -> str:
    """What clients will be told, in one line."""
    bootstrap = _address(settings.host_for_clients(), settings.port)
    brokers = ",".join(_address(broker.host, broker.port) for broker in settings.endpoints())
    return f"moldau ready bootstrap={bootstrap} brokers={brokers} store={store['url']}"


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _claim_ports(settings: ServeSettings, runtime_dir: Path, control: Path) -> None:
    try:
        take_lock(runtime_dir / f"{settings.port}.lock")  # kept until this process ends
    except LockedError as error:
        raise ConfigError(
            f"port {settings.port} is taken by another moldau serve, process {error.pid}: "
            "stop that one, or choose another port with --port"
        ) from None
    patience_s = PREDECESSOR_PATIENCE_S if control.exists() else 0.0
    check_ports(settings.host, settings.ports(), patience_s=patience_s)


def _claim(url: str, port: int) -> Claim:
    """The database for ourselves. Raises BootFailure."""
    # Imported here, as below.
    from ops.serve.claim import Claim

    claim = Claim(url, port)
    claim.take()
    return claim


def _external_store(url: str) -> dict[str, Any]:
    # Imported here: redis-py takes a while, and the embedded store does without.
    from broker.store.check import UnsuitableStore, check_store, mask

    try:
        info = check_store(url)
    except UnsuitableStore as error:
        raise ConfigError(str(error)) from None
    for warning in info.warnings:
        logger.warning("%s", warning)
    return {
        "url": mask(url),
        "kind": "external",
        "server": info.server,
        "version": info.version,
        "append_only_file": info.aof,
        "maxmemory": info.maxmemory,
        "maxmemory_policy": info.maxmemory_policy,
        "replicas": info.replicas,
    }
