"""The runtime directory, and locks that end with the processes that hold them.

The runtime directory holds the control socket and the unix sockets of workers and routers. Only
the user that runs `serve` may enter it: a process that can connect to them can act as a client.
"""

import errno
import fcntl
import os
import stat
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from moldau.broker.settings.processes import ConfigError

# sun_path is 108 bytes on Linux and 104 on macOS, the closing zero included.
UNIX_PATH_MAX = 103 if sys.platform == "darwin" else 107


class LockedError(RuntimeError):
    """Another process holds the lock; `pid` is the last that wrote to the file."""

    def __init__(self, path: Path, pid: int | None) -> None:
        super().__init__(f"{path} is locked by process {pid if pid is not None else 'unknown'}")
        self.pid = pid


def runtime_dir(env: Mapping[str, str]) -> Path:
    """$MOLDAU_RUNTIME_DIR, else $XDG_RUNTIME_DIR/moldau, else <temp directory>/moldau-<uid>."""
    if chosen := env.get("MOLDAU_RUNTIME_DIR"):
        return Path(os.path.abspath(chosen))
    if xdg := env.get("XDG_RUNTIME_DIR"):
        return Path(xdg) / "moldau"
    return Path(env.get("TMPDIR") or tempfile.gettempdir()) / f"moldau-{os.getuid()}"


def ensure_runtime_dir(env: Mapping[str, str]) -> Path:
    """The runtime directory, created if needed; refused when other users could change it."""
    path = runtime_dir(env)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Not through a link: another user could have planted one in a shared temp directory.
        found = path.lstat()
    except OSError as error:
        raise ConfigError(
            f"runtime directory {path}: {error.strerror}; choose another with MOLDAU_RUNTIME_DIR"
        ) from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise ConfigError(
            f"runtime directory {path} is not a directory of user {os.getuid()}; "
            "choose another with MOLDAU_RUNTIME_DIR"
        )
    if stat.S_IMODE(found.st_mode) & 0o077:
        path.chmod(0o700)
    return path


def control_socket(directory: Path, port: int) -> Path:
    return directory / f"{port}.sock"


def worker_socket(directory: Path, port: int, index: int) -> Path:
    return directory / f"{port}-worker-{index}.sock"


def router_socket(directory: Path, port: int, index: int) -> Path:
    return directory / f"{port}-router-{index}.sock"


def check_socket_path(path: Path) -> None:
    if len(os.fsencode(path)) > UNIX_PATH_MAX:
        raise ConfigError(
            f"{path} is too long for a unix socket (over {UNIX_PATH_MAX} bytes); "
            "choose a shorter MOLDAU_RUNTIME_DIR"
        )


def process_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def take_lock(path: Path, *, patience_s: float = 5.0) -> int:
    """Lock `path` for this process and write our pid into it; returns the descriptor to keep.

    The lock ends with the last process that holds the descriptor, however that dies, so the file
    itself never needs to be removed. A lock whose writer is dead is waited for: its children may
    still hold the descriptor, and exit soon.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                os.close(descriptor)
                raise
        text = os.pread(descriptor, 32, 0).strip()
        pid = int(text) if text.isdigit() else None
        alive = pid is not None and process_exists(pid)
        if alive or time.monotonic() >= deadline:
            os.close(descriptor)
            raise LockedError(path, pid)
        time.sleep(0.02)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
    return descriptor
