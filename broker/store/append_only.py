"""The parts of the embedded store's append-only file that are being written.

No client library is imported here: the supervisor starts without one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path


def written_sizes(directory: Path) -> dict[str, int]:
    """The parts that are being written, by name."""
    sizes = {}
    for path in directory.glob("*.incr.aof"):
        with contextlib.suppress(FileNotFoundError):  # just replaced by a rewrite
            sizes[path.name] = path.stat().st_size
    return sizes


def sync_files(directory: Path, names: Iterable[str] | None = None) -> None:
    """Force what was appended to disk. `names`: only these parts."""
    for name in written_sizes(directory) if names is None else names:
        try:
            descriptor = os.open(directory / name, os.O_RDONLY)
        except FileNotFoundError:
            continue  # rewritten meanwhile: the server has synced the new one first
        try:
            os.fdatasync(descriptor) if hasattr(os, "fdatasync") else os.fsync(descriptor)
        finally:
            os.close(descriptor)
