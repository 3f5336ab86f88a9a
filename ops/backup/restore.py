"""Puts a backup into a data directory, ready for `moldau serve`.

Everything is made in `<data dir>/restoring` and moved out of it at the end, the store last: a
restore that was interrupted leaves nothing that a broker would serve, and can be run again.

**An offset never names two records.** The broker went on after the backup, and gave out offsets
that the backup does not know. So a store of its own loads the copy, and every log begins a new
leader epoch above all that the backup knows and a margin (`plan.py`,
`broker/store_loss/restored_logs.py`). Groups and transactional ids go on as after any loss: the new
data directory has no store id yet, so open transactions are aborted at the first start, and no
group begins a generation that it had.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from moldau.broker.errors import StoreFault
from moldau.broker.store.format import check_not_newer, migrate
from moldau.broker.store_loss.restored_logs import begin_again
from moldau.ops.backup.files import (
    BackupError,
    Progress,
    check_room,
    check_sizes,
    copy_files,
    make_directory,
    reason,
    sync_directory,
    write_new,
)
from moldau.ops.backup.manifest import SECURITY, STORE, BadBackup, Manifest, read_manifest
from moldau.ops.backup.plan import EPOCHS, native_time, offsets_margin
from moldau.ops.secure.moved import SETTINGS, moved_settings
from moldau.ops.serve.embedded_store import RESTORING
from moldau.ops.serve.runtime import LockedError, take_lock
from moldau.ops.serve.scratch_store import NotLoadedError, scratch_store

LOCK = "lock"
LOCK_PATIENCE_S = 1.0

Begin = Callable[[int], Progress]


class Restored(NamedTuple):
    """What was put back."""

    manifest: Manifest
    margin: int  # of offsets, in every log
    logs: int  # that will begin a new leader epoch
    has_security: bool


def restore(
    backup: Path,
    data_dir: Path,
    *,
    now_ms: int,
    margin: int | None,
    begin: Begin,
    loading: Callable[[], None],
) -> Restored:
    """Raises BackupError, BadBackup, and ConfigError where there is no embedded store."""
    manifest = read_manifest(backup)
    check_store_format(manifest)
    check_sizes(backup, manifest)
    lock = _lock(data_dir)
    made = data_dir / RESTORING
    try:
        _check_empty(data_dir)
        make_directory(made)
        check_room(data_dir, manifest.bytes)
        copy_files(backup, manifest, made, begin(manifest.bytes))
        chosen = offsets_margin(manifest.mark.at_ms, now_ms) if margin is None else margin
        logs = _begin_again(made / STORE, manifest, chosen, now_ms, loading)
        _move_out(made, data_dir)
    except OSError as fault:
        where = fault.filename or data_dir
        raise BackupError(f"{where}: {reason(fault)}; nothing was put back") from None
    finally:
        shutil.rmtree(made, ignore_errors=True)
        os.close(lock)
    return Restored(manifest, chosen, logs, (data_dir / SECURITY).is_dir())


def check_store_format(manifest: Manifest) -> None:
    """Check that this version knows the format of the store. Raises BadBackup."""
    try:
        check_not_newer(manifest.mark.format.encode())
    except StoreFault as fault:
        raise BadBackup(str(fault)) from None


def _lock(data_dir: Path) -> int:
    try:
        make_directory(data_dir)
        return take_lock(data_dir / LOCK, patience_s=LOCK_PATIENCE_S)
    except LockedError as error:
        raise BackupError(
            f"data directory {data_dir} is in use by process {error.pid}: stop that one, or choose "
            "another directory with --data-dir"
        ) from None
    except OSError as fault:
        raise BackupError(
            f"data directory {data_dir}: {reason(fault)}; choose another with --data-dir"
        ) from None


def _check_empty(data_dir: Path) -> None:
    """Remove what an interrupted restore left; refuse anything else. Raises BackupError."""
    found = {path.name for path in data_dir.iterdir()} - {LOCK}
    if RESTORING in found:
        for name in {RESTORING, SECURITY, STORE} & found:
            shutil.rmtree(data_dir / name)
        found -= {RESTORING, SECURITY, STORE}
    if STORE in found:
        raise BackupError(
            f"data directory {data_dir} holds a store already: choose another with --data-dir, or "
            "move that one away"
        )
    if found:
        raise BackupError(
            f"data directory {data_dir} is not empty ({', '.join(sorted(found)[:3])}): choose "
            "another with --data-dir"
        )


def _begin_again(
    files: Path, manifest: Manifest, margin: int, now_ms: int, loading: Callable[[], None]
) -> int:
    mark = manifest.mark
    try:
        with scratch_store(files, loading) as store:
            if store.marked_with() != mark.value:
                raise BadBackup("the store's file does not end at the mark of the manifest")
            migrate(store)
            logs = begin_again(
                store,
                offsets=margin,
                epochs=EPOCHS,
                native_ms=native_time(mark.at_ms, now_ms),
                now_ms=now_ms,
            )
            store.shut_down()
            return logs
    except NotLoadedError as fault:
        raise BadBackup(f"the store cannot load the backup: {fault}") from None
    except StoreFault as fault:
        raise BackupError(f"the store failed while it was prepared: {fault}") from None


def _move_out(made: Path, data_dir: Path) -> None:
    for folder, _, _ in os.walk(made):
        sync_directory(Path(folder))
    if (made / SECURITY).is_dir():
        _name_own_ca(made / SECURITY, data_dir / SECURITY)
        (made / SECURITY).rename(data_dir / SECURITY)
    (made / STORE).rename(data_dir / STORE)
    made.rmdir()
    sync_directory(data_dir)


def _name_own_ca(made: Path, directory: Path) -> None:
    """Clients' settings named the CA in the data directory of the backup's broker."""
    for path in (made / name for name in SETTINGS):
        if path.exists():
            content = path.read_bytes()
            moved = moved_settings(content, directory)
            if moved != content:
                write_new(path, moved)
