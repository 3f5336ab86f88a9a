"""Locks of a lake: a file lock of the operating system, released when its process ends."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moldau.ops.pipeline.errors import PipelineError


@contextmanager
def hold_lock(
    path: Path, what: str, remedy: str = "wait for it, or stop it first"
) -> Iterator[None]:
    """Hold the lock file `path`. Raises PipelineError when another process is doing `what`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+")
    except OSError as error:
        raise PipelineError(
            f"{path} cannot be written: {error.strerror or error}; give a lake in which this user "
            "may write"
        ) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            owner = file.read().strip() or "another process"
            raise PipelineError(f"{what} is already being done by {owner}; {remedy}") from None
        file.seek(0)
        file.truncate()
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        file.write(f"process {os.getpid()} on {socket.gethostname()} since {when}\n")
        file.flush()
        yield
