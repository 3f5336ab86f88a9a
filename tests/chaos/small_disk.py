"""A file system of a few megabytes, and what fills it. Mounting one takes root."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

MIB = 1 << 20


class CannotMount(RuntimeError):
    """There is no right to mount here."""


class SmallDisk:
    """A mounted file system; `ballast` is a file of another program on it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    @property
    def free(self) -> int:
        facts = os.statvfs(self.path)
        return facts.f_bavail * facts.f_frsize

    def fill(self, leave: int = 0) -> None:
        """Take what is free but for `leave` bytes; everything is taken if others are faster."""
        with self._ballast.open("ab") as file:
            while (size := min(self.free - leave, MIB)) > 0:
                try:
                    os.write(file.fileno(), bytes(size))
                except OSError:
                    return

    def make_room(self) -> None:
        self._ballast.unlink(missing_ok=True)


@contextlib.contextmanager
def small_disk(path: Path, size: int) -> Iterator[SmallDisk]:
    """Raises CannotMount."""
    path.mkdir(parents=True)
    words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    try:
        subprocess.run(words, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as fault:
        raise CannotMount(f"a tmpfs cannot be mounted: {fault}") from None
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def can_mount(directory: Path) -> bool:
    try:
        with small_disk(directory / "try", MIB):
            return True
    except CannotMount:
        return False
