"""`moldau serve`: reads the settings, checks everything, then runs the supervisor.

Nothing is started before settings, ports, the data directory and the store have been checked. A
problem there ends `serve` with one message and exit code 3.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from moldau.broker.logging_setup import set_up_logging
from moldau.broker.process import BOOT_FAILED, BootFailure
from moldau.broker.settings.listeners import resolved
from moldau.broker.settings.loading import load_settings
from moldau.broker.settings.options import OPTIONS
from moldau.broker.settings.processes import ConfigError, ServeSettings
from moldau.broker.tls.context import check_tls
from moldau.ops.serve import embedded_store, http_child
from moldau.ops.serve.backup_mark import mark_backup
from moldau.ops.serve.child_spec import ChildSpec
from moldau.ops.serve.embedded_store import EmbeddedStore
from moldau.ops.serve.exposure import check_exposure, warn_of_root
from moldau.ops.serve.external_store import check_external, check_store_format
from moldau.ops.serve.listeners import Listeners
from moldau.ops.serve.notify import READY, keep_alive, notify
from moldau.ops.serve.parent import check_standard_input, watch_parent
from moldau.ops.serve.ports import check_ports
from moldau.ops.serve.preparation import bring_up_to_date
from moldau.ops.serve.process_specs import router_specs, spare_spec, worker_specs
from moldau.ops.serve.runtime import (
    LockedError,
    check_socket_path,
    control_socket,
    ensure_runtime_dir,
    router_socket,
    take_lock,
    worker_socket,
)
from moldau.ops.serve.standby import Tenure
from moldau.ops.serve.supervisor import StartStages, Supervisor

if TYPE_CHECKING:
    from moldau.ops.serve.claim import Claim

logger = logging.getLogger("moldau.supervisor")

# A predecessor that was killed leaves its socket behind, and its workers may need a moment.
PREDECESSOR_PATIENCE_S = 5.0

WRONG_USAGE = 2
STANDBY_ALONE = (
    "--standby needs --redis URL: it waits until another broker's store is free, and an embedded "
    "store is on the machine of its broker"
)

# What SIGHUP may change: settings of workers and routers, and how much is logged.
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
Start a broker: a router on the bootstrap port, workers that clients connect to directly, and the
store that keeps their logs.
It prints one line, `moldau ready …`, when clients can connect; with --standby `moldau standby …`
before that, while another broker serves.
"""

EXAMPLES = """\
examples:
  moldau serve                                   127.0.0.1:9092, an embedded store
  moldau serve --port 19092 --workers 4 --data-dir ./data
  moldau serve --secure                          TLS, users and ACLs; then: moldau users add NAME
  moldau serve --secure --host 0.0.0.0 --advertised-host broker.example.com
  moldau serve --listeners PLAINTEXT://127.0.0.1:9092,SASL_SSL://0.0.0.0:19092 --config moldau.toml
  moldau serve --redis redis://:secret@10.0.0.5:6379/0
  moldau serve --redis redis+sentinel://:secret@10.0.0.5:26379,10.0.0.6:26379/mymaster/0
  moldau serve --redis redis+sentinel://:secret@10.0.0.5:26379/mymaster/0 --standby
                                                 take over when the broker that serves it ends
  moldau serve --config moldau.toml
  moldau serve --check --data-dir ./data         before an upgrade: what a start would change

Every option is also an environment variable (MOLDAU_PORT=19092) and a key of the TOML file:
  port = 19092
  store-fsync = "always"
  [broker]                                       # Kafka's broker settings
  "num.partitions" = 3
A flag wins over the environment, the environment over the file.

signals:
  SIGTERM, SIGINT   answer requests in flight, stop everything, exit 0 within 10 s
  SIGHUP            reload the file; processes whose settings changed restart one after another,
                    the others look at their certificates again
                    (ports, store and number of processes need a restart of serve)

exit codes: 0 stopped as asked, 2 wrong usage, 3 could not start, or another broker has taken over
the store (the message names the cause); with --check 0 would start, 3 would not
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    parser.add_argument(
        "--check",
        action="store_true",
        help="say what a start would change in the store, and whether it would succeed; "
        "change nothing, start nothing",
    )
    parser.add_argument("--json", action="store_true", help="with --check: print JSON")
    add_options(parser)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `serve`, for commands that read them too."""
    parser.add_argument("--config", metavar="FILE", help="TOML file with the same options")
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in OPTIONS:
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        # Parsed in load_settings, like the environment and the file: one message for all three.
        bare: dict[str, Any] = {"nargs": "?", "const": "true"} if option.is_switch else {}
        groups[option.group].add_argument(
            f"--{option.name}", metavar=option.metavar, help=option.help, **bare
        )


def run(arguments: argparse.Namespace) -> int:
    os.umask(0o077)  # every file and socket, of child processes too: none is for other users
    try:
        if arguments.check:
            return _check(arguments)
        if arguments.json:
            raise ConfigError("--json goes with --check; for log lines it is --log-json")
        settings = read_settings(arguments)
        if settings.standby and settings.redis is None:
            print(f"moldau: {STANDBY_ALONE}", file=sys.stderr)
            return WRONG_USAGE
        if settings.exit_with_parent:
            check_standard_input()
        _log_as(settings)
        warn_of_root(settings.listening)
        _serve(arguments, settings)
    except (ConfigError, BootFailure) as error:
        print(f"moldau: {error}", file=sys.stderr)
        return BOOT_FAILED
    return 0


def _check(arguments: argparse.Namespace) -> int:
    """Raises ConfigError."""
    # Imported here: a start does not need it.
    from moldau.ops.serve.check_command import report_start

    settings = load_settings(vars(arguments), os.environ, arguments.config)
    check_exposure(settings.listening, insecure=settings.insecure)
    return report_start(settings, as_json=arguments.json)


def read_settings(arguments: argparse.Namespace) -> ServeSettings:
    """Settings from flags, environment and file. Raises ConfigError."""
    settings = load_settings(vars(arguments), os.environ, arguments.config)
    check_exposure(settings.listening, insecure=settings.insecure)
    if settings.secure:
        # Imported here and below: making certificates takes libraries that others start without.
        from moldau.ops.secure.start import prepare_files

        settings = prepare_files(settings)
    for listener in settings.listening:
        if listener.tls is not None:
            try:
                check_tls(listener.tls)
            except ConfigError as error:
                raise ConfigError(f"listener {listener.name}: {error}") from None
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

    store_stage: list[list[ChildSpec]] = []
    background: Sequence[Any] = ()
    claim: Claim | None = None
    socket: str | None = None
    store: EmbeddedStore | None = None
    if settings.redis is None:
        store = embedded_store.prepare(settings, runtime_dir)
        url, background, socket = store.url, store.background, store.socket
        store_stage.append([store.spec])
        facts = {
            "url": url,
            "kind": "embedded",
            "data_dir": settings.data_dir,
            "fsync": settings.store_fsync,
            "maxmemory": settings.store_maxmemory,
            "disk": store.guard.facts,
        }
    else:
        url = settings.redis
        facts = check_external(url)
        claim = _claim(settings, url)

    def serve_once() -> bool:
        """Stand by, serve, stop; returns whether another broker has taken over."""
        http = http_child.prepare(settings, control, sockets, pinged)
        try:
            listeners = Listeners.bind(settings.listening, sockets, pinged)

            def serving() -> list[ChildSpec]:
                # One stage: a router is ready when the workers are, and all stop at the same time,
                # so that requests parked in a worker are answered through the router.
                files = None if store is None else store.files
                lease = None if claim is None else claim.for_workers
                workers = worker_specs(settings, url, sockets, listeners, files, lease)
                return workers + router_specs(settings, sockets, pinged, listeners)

            def reload() -> StartStages:
                nonlocal settings
                settings = reloaded(settings, read_settings(arguments))
                _log_as(settings)
                return [serving()]

            def announce() -> None:
                print(ready_line(settings, facts, http), flush=True)
                if settings.secure:
                    from moldau.ops.secure.start import tell

                    tell(settings)
                notify(READY)

            def announce_standby() -> None:
                print(standby_line(settings, facts, http), flush=True)
                # For systemd too: it would end a unit that does not start in time.
                notify(READY)

            async def prepare_store() -> None:
                await bring_up_to_date(url, socket)
                if settings.secure:
                    from moldau.ops.secure.start import before_clients

                    await before_clients(settings, url)

            async def supervise() -> bool:
                if settings.exit_with_parent:
                    watch_parent()
                tenure = None
                stages: StartStages = []
                if claim is None or not settings.standby:
                    stages = [*store_stage, serving()]
                if claim is not None:
                    tenure = Tenure(claim.keep, claim.facts)
                    if settings.standby:
                        tenure.stages = lambda: [serving()]
                        tenure.until_taken = claim.until_taken
                        tenure.on_standby = announce_standby
                        tenure.warm = [spare_spec(listeners)] * (len(sockets) + len(pinged))
                        tenure.background = (keep_alive,)
                return await Supervisor(
                    stages,
                    port=settings.port,
                    control_path=control,
                    store=facts,
                    on_ready=announce,
                    reload=reload,
                    background=(*background, keep_alive),
                    before_serving=prepare_store,
                    spare=spare_spec(listeners) if settings.spare_process else None,
                    companions=[http.spec] if http is not None else [],
                    stop_listening=listeners.close,
                    requests={"mark-backup": functools.partial(mark_backup, store)},
                    tenure=tenure,
                ).run()

            return asyncio.run(supervise())
        finally:
            if http is not None:
                http.close()
            for path in (*sockets, *pinged):
                path.unlink(missing_ok=True)

    try:
        while serve_once():
            if not settings.standby:
                raise BootFailure(
                    "another broker serves this Redis database now, so this one has stopped; with "
                    "--standby it would wait to take over again"
                )
            logger.warning("standing by again")
        if store is not None:
            store.guard.stopped()
    finally:
        if claim is not None:
            claim.release()


def reloaded(before: ServeSettings, after: ServeSettings) -> ServeSettings:
    """`before` with the settings that may change while running; the others wait for a restart."""
    names = ServeSettings.__struct_fields__
    for name in names:
        if name not in (*RELOADABLE, "listening") and getattr(before, name) != getattr(after, name):
            logger.warning("%s changed: restart serve to apply it", name.replace("_", "-"))
    changes = {name: getattr(after, name) for name in RELOADABLE}
    changed = resolved(msgspec.structs.replace(before, **changes))
    if http_child.console_access(changed) != http_child.console_access(before):
        logger.warning("who may use the console changed: restart serve to apply it")
    return changed


def ready_line(
    settings: ServeSettings, store: dict[str, Any], http: http_child.HttpChild | None = None
) -> str:
    """The addresses advertised to clients of the first listener, in one line."""
    first = settings.listening[0]
    bootstrap = _address(first.advertised_host, first.advertised_port)
    endpoints = first.endpoints(settings.workers, settings.advertise)
    brokers = ",".join(_address(broker.host, broker.port) for broker in endpoints)
    line = f"moldau ready bootstrap={bootstrap} brokers={brokers} store={store['url']}"
    return line if http is None else f"{line} http={http.url}"


def standby_line(
    settings: ServeSettings, store: dict[str, Any], http: http_child.HttpChild | None = None
) -> str:
    """What a standby prints: it is loaded, and waits."""
    line = f"moldau standby port={settings.port} store={store['url']}"
    return line if http is None else f"{line} http={http.url}"


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
    for listener in settings.listening:
        check_ports(listener.host, [*listener.ports(settings.workers)], patience_s=patience_s)


def _claim(settings: ServeSettings, url: str) -> Claim:
    """The external database, claimed for this broker unless it stands by. Raises BootFailure."""
    # Imported here, as in `check_external`.
    from moldau.ops.serve.claim import Claim

    claim = Claim(url, settings.port)
    if settings.standby:
        check_store_format(url)
    else:
        claim.take()
    return claim
