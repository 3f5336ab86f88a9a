"""Space of a file system that is set aside: beyond the end of a file, or as a file of its own.

`fallocate` on Linux (ext4, XFS, btrfs, tmpfs and others). Where it is not there, or does not
allocate anything (ZFS), nothing can be set aside beyond the end of a file.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from enum import Enum
from pathlib import Path

_KEEP_SIZE = 1
_STEP = 1 << 20
_TRIES = 10  # a signal may interrupt it
_BLOCK = 512  # st_blocks counts in these, whatever the file system's own size


def _find() -> ctypes._FuncPointer | None:
    if sys.platform != "linux":
        return None
    found = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if found is not None:
        found.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return found


_fallocate = _find()


def allocated_bytes(path: Path) -> int:
    return path.stat().st_blocks * _BLOCK


class Outcome(Enum):
    DONE = "done"
    FULL = "full"  # the disk, or the user's quota
    UNSUPPORTED = "unsupported"


def allocate_beyond(path: Path, end: int) -> Outcome:
    """Allocate the file up to `end`, without changing its size. Raises OSError."""
    if _fallocate is None:
        return Outcome.UNSUPPORTED
    descriptor = os.open(path, os.O_WRONLY)
    try:
        size = os.fstat(descriptor).st_size
        if end <= size:
            return Outcome.DONE
        for _ in range(_TRIES):
            if _fallocate(descriptor, _KEEP_SIZE, size, end - size) == 0:
                is_there = os.fstat(descriptor).st_blocks * _BLOCK >= end - size
                return Outcome.DONE if is_there else Outcome.UNSUPPORTED
            reason = ctypes.get_errno()
            if reason != errno.EINTR:
                break
        return Outcome.FULL if reason in (errno.ENOSPC, errno.EDQUOT) else Outcome.UNSUPPORTED
    finally:
        os.close(descriptor)


def make_reserve(path: Path, size: int) -> None:
    """A file that takes so many bytes. Raises OSError, and leaves an empty one."""
    try:
        with path.open("wb") as file:
            if (
                _fallocate is not None
                and _fallocate(file.fileno(), 0, 0, size) == 0
                and os.fstat(file.fileno()).st_blocks * _BLOCK >= size
            ):
                return
            for _ in range(-(-size // _STEP)):
                file.write(os.urandom(_STEP))  # a file system that compresses must not shrink it
    except OSError:
        os.truncate(path, 0)
        raise


def give_up_reserve(path: Path) -> None:
    if path.exists():
        os.truncate(path, 0)
