"""`moldau serve --check`: what a start would do with these settings and this store. It changes
nothing: nothing is locked, bound for longer than a moment, or written beside the data.

The embedded store is read as it is, by a server of its own that gets links to its files. That needs
as much memory as a start, and no room on the disk but for the last part of the file if its end is
missing. A broker may be running on it meanwhile, an older one too.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from moldau.broker.errors import StoreFault
from moldau.broker.settings.options import OPTIONS
from moldau.broker.settings.processes import ConfigError, ServeSettings
from moldau.broker.store.append_parts import PARTS_NAME, link_parts, read_parts
from moldau.broker.store.backup import BackupStore
from moldau.broker.store.check import UnsuitableStore, check_store
from moldau.broker.store.format import CURRENT, Change, planned_change
from moldau.broker.store.store_url import mask
from moldau.broker.store_loss.embedded_store_id import EmbeddedStoreId
from moldau.ops.serve.claim import holder_in_words
from moldau.ops.serve.control import NotRunningError, ask_status
from moldau.ops.serve.embedded_store import RESTORING, server_binary
from moldau.ops.serve.ports import check_ports
from moldau.ops.serve.runtime import control_socket, runtime_dir
from moldau.ops.serve.scratch_store import NotLoadedError, scratch_store


class StartReport(msgspec.Struct):
    """What a start would find and do."""

    version: str
    store: str
    format: int = 0  # of the store; 0: there is none yet
    ports: list[int] = []
    settings: dict[str, str] = {}  # those that are not the default
    running: int | None = None  # the supervisor of a broker that runs with this port
    changes: list[str] = []
    problems: list[str] = []

    @property
    def would_start(self) -> bool:
        return not self.problems


def check_start(settings: ServeSettings, loading: Callable[[], None]) -> StartReport:
    report = StartReport(
        importlib.metadata.version("moldau"),
        settings.data_dir if settings.redis is None else mask(settings.redis),
        settings=_own_settings(settings),
    )
    report.running = _running(settings.port)
    _check_ports(settings, report)
    if settings.redis is None:
        _check_data_dir(settings, report, loading)
    else:
        _check_redis(settings.redis, report, is_standby=settings.standby)
    return report


def _own_settings(settings: ServeSettings) -> dict[str, str]:
    """The options that are not the default, without the values of secrets."""
    usual = ServeSettings(data_dir=settings.data_dir)
    own = {
        option.name: mask(value) if option.name == "redis" else str(value)
        for option in OPTIONS
        if (value := getattr(settings, option.field)) != getattr(usual, option.field)
    }
    return own | {f"broker.{name}": "set" for name in settings.broker}


def _running(port: int) -> int | None:
    try:
        status = ask_status(control_socket(runtime_dir(os.environ), port))
    except NotRunningError:
        return None
    pid: int = status["processes"][0]["pid"]
    return pid


def _check_ports(settings: ServeSettings, report: StartReport) -> None:
    for listener in settings.listening:
        ports = [*listener.ports(settings.workers)]
        report.ports += ports
        if report.running is not None:
            continue  # they are its own
        try:
            check_ports(listener.host, ports)
        except ConfigError as error:
            report.problems.append(str(error))
    if report.running is not None:
        report.changes.append(f"process {report.running} serves this port now: stop it first")


# --- the embedded store ---


def _check_data_dir(
    settings: ServeSettings, report: StartReport, loading: Callable[[], None]
) -> None:
    data_dir = Path(settings.data_dir)
    try:
        server_binary()
    except ConfigError as error:
        report.problems.append(str(error))
        return
    if (data_dir / RESTORING).exists():
        report.problems.append(f"{data_dir}: a restore into it has not ended: run it again")
        return
    if settings.secure and not (data_dir / "security").is_dir():
        report.changes.append(
            f"{data_dir / 'security'} is made: keys, certificates, and the user admin"
        )
    files = data_dir / "store" / "appendonlydir"
    try:
        is_there = (files / PARTS_NAME).exists()
        holder = _holder(data_dir / "lock")
    except OSError as fault:
        report.problems.append(f"data directory {data_dir}: {fault.strerror}")
        return
    if holder is not None and holder != report.running:
        report.problems.append(
            f"data directory {data_dir} is in use by process {holder}: stop that one"
        )
    if not is_there:
        report.changes.append(f"{data_dir} gets a new, empty store")
        return
    store_id = EmbeddedStoreId(data_dir, files)
    if holder is None and store_id.file.exists() and not store_id.would_be_kept():
        report.changes.append(
            "the store's file may lack something (the machine crashed, or it was copied or "
            "changed): logs that may have lost records begin a new leader epoch"
        )
    try:
        with _copy_loaded(files, loading) as store:
            _report_format(planned_change(store), report)
    except (NotLoadedError, StoreFault, OSError, ValueError) as fault:
        report.problems.append(f"the store in {files} cannot be read: {fault}")


def _holder(lock: Path) -> int | None:
    """The process that holds a lock; None: it is free. It is held for a moment, and not written."""
    try:
        descriptor = os.open(lock, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(descriptor, 32, 0).strip()
        return int(text) if text.isdigit() else 0
    finally:
        os.close(descriptor)
    return None


@contextlib.contextmanager
def _copy_loaded(files: Path, loading: Callable[[], None]) -> Iterator[BackupStore]:
    """The store in `files`, which is only read. Raises NotLoadedError."""
    with tempfile.TemporaryDirectory(prefix="moldau-") as made, contextlib.ExitStack() as stack:
        folder = Path(made)
        link_parts(files, folder)
        try:
            store = stack.enter_context(scratch_store(folder, loading))
        except NotLoadedError:
            # Only the last part of a file may lack its end, as after a crash: it is cut there.
            shutil.rmtree(folder / "appendonlydir")
            _copy_last_part(files, folder)
            store = stack.enter_context(scratch_store(folder, loading, may_cut=True))
        yield store


def _copy_last_part(files: Path, folder: Path) -> None:
    link_parts(files, folder, is_behind=False)
    last = read_parts((files / PARTS_NAME).read_text())[-1].name
    copy = folder / "appendonlydir" / last
    copy.unlink()
    shutil.copyfile(files / last, copy)


# --- any store ---


def _check_redis(url: str, report: StartReport, *, is_standby: bool) -> None:
    try:
        info = check_store(url)
        report.changes += [f"a warning: {warning}" for warning in info.warnings]
        with BackupStore(url) as store:
            if (holder := store.claim()) is not None:
                what = "this one would wait for it" if is_standby else "stop it first"
                report.changes.append(
                    f"another broker serves this database now ({holder_in_words(holder)}): {what}"
                )
            _report_format(planned_change(store), report)
    except (UnsuitableStore, StoreFault) as fault:
        report.problems.append(str(fault))


def _report_format(change: Change, report: StartReport) -> None:
    report.format = change.found
    if change.refusal:
        report.problems.append(change.refusal)
    elif change.found and change.found != CURRENT:
        report.changes.append(
            f"the store is changed from format {change.found} to {CURRENT}: {change.renames:,} of "
            f"{change.keys:,} keys are renamed. It cannot be undone: keep a copy"
        )
