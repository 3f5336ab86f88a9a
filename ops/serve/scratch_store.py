"""A store of its own on the files of a backup: to look into it, or to prepare it for a new start.

The server listens on a unix socket in a private directory, and ends with this process, however that
ends. It is no broker: nothing connects to it but the one that started it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

from moldau.broker.errors import StoreFault
from moldau.broker.store.backup import BackupStore
from moldau.ops.serve.children import die_with, guard_of
from moldau.ops.serve.embedded_store import last_log_line, server_argv, server_binary
from moldau.ops.serve.process_specs import MALLOC_ENV

LOOK_EVERY_S = 0.05

OnLoading = Callable[[], None]


class NotLoadedError(RuntimeError):
    """The server ended before it had loaded the files; the text is what it said."""


@contextlib.contextmanager
def scratch_store(
    files: Path, loading: OnLoading = lambda: None, *, may_cut: bool = False
) -> Iterator[BackupStore]:
    """The store on `files`, which holds the directory `appendonlydir`, once it is loaded.

    `loading` is called many times until then. `may_cut`: a file whose end is missing is cut behind
    its last command, as at a start of the broker; otherwise it is refused.

    Raises ConfigError where there is no embedded store, NotLoadedError.
    """
    binary = server_binary()
    directory = Path(tempfile.mkdtemp(prefix="moldau-"))
    socket, log = directory / "store.sock", directory / "store.log"
    try:
        process = subprocess.Popen(
            [
                *server_argv(binary, socket=socket, files=files, log=log, fsync="no"),
                # The server cuts any part, also one that it then refuses.
                *("--aof-load-truncated", "yes" if may_cut else "no"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **MALLOC_ENV},
            start_new_session=True,
            preexec_fn=die_with(os.getpid()),
        )
        guard = guard_of(process)
        try:
            with BackupStore(f"unix://{quote(str(socket))}") as store:
                _until_loaded(process, store, socket, log, loading)
                yield store
        finally:
            process.kill()
            process.wait()
            guard.kill()
            guard.wait()
            assert guard.stdin is not None
            guard.stdin.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _until_loaded(
    process: subprocess.Popen[bytes],
    store: BackupStore,
    socket: Path,
    log: Path,
    loading: OnLoading,
) -> None:
    while True:
        if process.poll() is not None:
            raise NotLoadedError(last_log_line(log) or "it ended without a word")
        with contextlib.suppress(StoreFault):
            if socket.exists() and not store.is_loading():
                return
        loading()
        time.sleep(LOOK_EVERY_S)
