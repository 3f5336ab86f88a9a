"""Where a backup is written to: a directory, or a tar archive on standard output.

The manifest comes last in both. A directory or an archive that was cut short is no backup.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import tarfile
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from moldau.ops.backup.files import (
    PRIVATE_FILE,
    BackupError,
    Progress,
    check_room,
    copy_stream,
    make_directory,
    reason,
    remove_tree,
    sync_directory,
    write_new,
)
from moldau.ops.backup.manifest import MANIFEST, SECURITY, STORE, FileEntry, Manifest, encoded


class Target(Protocol):
    """Its methods raise OSError and BackupError."""

    name: str

    def check_room(self, needed: int, data_dir: Path, kept_free: int) -> None: ...
    def add(self, name: str, file: BinaryIO, size: int, progress: Progress) -> FileEntry: ...
    def add_content(self, name: str, content: bytes) -> FileEntry: ...
    def finish(self, manifest: Manifest) -> None: ...
    def close(self) -> None: ...


class DirectoryTarget:
    """A new or empty directory. Raises BackupError for another one."""

    def __init__(self, directory: Path) -> None:
        self.name = str(directory)
        self._directory = directory
        try:
            self._was_there = directory.is_dir()
            if (directory / MANIFEST).exists():
                raise BackupError(f"{directory} holds a backup already: choose another directory")
            if self._was_there and any(directory.iterdir()):
                raise BackupError(f"{directory} is not empty: choose a new directory")
            make_directory(directory)
            (directory / STORE).mkdir(mode=0o700)  # fails for the second of two backups
        except OSError as fault:
            raise BackupError(f"{directory}: {reason(fault)}; choose another directory") from None

    def check_room(self, needed: int, data_dir: Path, kept_free: int) -> None:
        is_same_disk = os.stat(self._directory).st_dev == os.stat(data_dir).st_dev
        check_room(self._directory, needed, spare=kept_free if is_same_disk else 0)

    def add(self, name: str, file: BinaryIO, size: int, progress: Progress) -> FileEntry:
        make_directory((self._directory / name).parent)
        return copy_stream(file, size, self._directory / name, progress)

    def add_content(self, name: str, content: bytes) -> FileEntry:
        make_directory((self._directory / name).parent)
        return write_new(self._directory / name, content)

    def finish(self, manifest: Manifest) -> None:
        folders = {(self._directory / name).parent for name in manifest.files}
        for folder in folders | {self._directory / STORE}:
            sync_directory(folder)
        write_new(self._directory / MANIFEST, encoded(manifest))
        with contextlib.suppress(OSError):  # it may not be ours to read
            sync_directory(self._directory.parent)

    def close(self) -> None:
        """Remove what was written, unless the backup is complete."""
        if (self._directory / MANIFEST).exists():
            return
        if not self._was_there:
            remove_tree(self._directory)
            return
        for name in (STORE, SECURITY):
            remove_tree(self._directory / name)
        for left in self._directory.glob(f"{MANIFEST}.*"):
            left.unlink(missing_ok=True)


class TarTarget:
    """An archive that is written from its beginning to its end, without seeking."""

    def __init__(self, out: BinaryIO) -> None:
        self.name = "standard output"
        self._out = out
        # Not tarfile's own mode for streams, which writes to a pipe that is broken once more.
        self._archive = tarfile.TarFile(fileobj=_Counted(out), mode="w")

    def check_room(self, needed: int, data_dir: Path, kept_free: int) -> None:
        """Nothing is known of where it goes."""

    def add(self, name: str, file: BinaryIO, size: int, progress: Progress) -> FileEntry:
        member = tarfile.TarInfo(name)
        member.size, member.mode = size, PRIVATE_FILE
        source = _Hashed(file, progress)
        try:
            self._archive.addfile(member, source)
        except tarfile.ReadError as fault:
            raise EOFError(str(fault)) from None
        return FileEntry(size, source.digest.hexdigest())

    def add_content(self, name: str, content: bytes) -> FileEntry:
        return self.add(name, io.BytesIO(content), len(content), lambda _: None)

    def finish(self, manifest: Manifest) -> None:
        self.add_content(MANIFEST, encoded(manifest))
        self._archive.close()
        self._out.flush()

    def close(self) -> None:
        """What was written cannot be taken back: it has no manifest."""


class _Counted(io.RawIOBase):
    """A file that is only written to, and knows where it is."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._at = 0

    def write(self, content: Any) -> int:
        self._out.write(content)
        self._at += len(content)
        return len(content)

    def tell(self) -> int:
        return self._at


class _Hashed(io.RawIOBase):
    """A file that notes what is read from it."""

    def __init__(self, file: BinaryIO, progress: Progress) -> None:
        self._file = file
        self._progress = progress
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        found = self._file.read(size)
        self.digest.update(found)
        self._progress(len(found))
        return found
