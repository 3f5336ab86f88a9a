"""Copying files with checksums, privately and durably."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from moldau.ops.backup.manifest import BadBackup, FileEntry, Manifest

CHUNK = 4 << 20
PRIVATE_FILE, PRIVATE_DIRECTORY = 0o600, 0o700

Progress = Callable[[int], None]  # gets how many bytes were copied or read since the last call


class BackupError(RuntimeError):
    """The backup was not taken, or not put back; the text names the cause and the remedy."""


def make_directory(path: Path) -> None:
    path.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)


def copy_stream(source: BinaryIO, size: int, target: Path, progress: Progress) -> FileEntry:
    """Copy `size` bytes to a new private file and sync it. Raises OSError, EOFError."""
    made = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
    digest, left = hashlib.sha256(), size
    with os.fdopen(made, "wb", buffering=0) as file:
        while left:
            chunk = source.read(min(CHUNK, left))
            if not chunk:
                raise EOFError(f"it is {left} bytes shorter than it was")
            digest.update(chunk)
            view = memoryview(chunk)
            while view:
                view = view[file.write(view) :]
            left -= len(chunk)
            progress(len(chunk))
        os.fsync(file.fileno())
    return FileEntry(size, digest.hexdigest())


def write_new(target: Path, content: bytes) -> FileEntry:
    """Write a private file under another name, sync it, and give it its name."""
    beside = target.with_name(target.name + ".new")
    made = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE_FILE)
    with os.fdopen(made, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(target)
    sync_directory(target.parent)
    return FileEntry(len(content), hashlib.sha256(content).hexdigest())


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_sizes(directory: Path, manifest: Manifest) -> None:
    """Check that no file is missing or cut, before anything is read. Raises BadBackup."""
    for name, entry in manifest.files.items():
        try:
            size = (directory / name).stat().st_size
        except OSError as fault:
            raise BadBackup(f"{directory / name}: {fault.strerror}") from None
        if size != entry.size:
            what = "was cut" if size < entry.size else "has grown"
            raise BadBackup(f"{directory / name} {what}: {size:,} bytes, not {entry.size:,}")


def check_files(directory: Path, manifest: Manifest, progress: Progress) -> None:
    """Compare all files with their checksums. Raises BadBackup."""
    check_sizes(directory, manifest)
    for name, entry in manifest.files.items():
        digest = hashlib.sha256()
        try:
            with (directory / name).open("rb", buffering=0) as file:
                while chunk := file.read(CHUNK):
                    digest.update(chunk)
                    progress(len(chunk))
        except OSError as fault:
            raise BadBackup(f"{directory / name}: {fault.strerror}") from None
        if digest.hexdigest() != entry.sha256:
            raise BadBackup(f"{directory / name} was changed: its checksum is another")


def copy_files(directory: Path, manifest: Manifest, target: Path, progress: Progress) -> None:
    """Copy all files below `target`, compared with their checksums. Raises BadBackup, OSError."""
    check_sizes(directory, manifest)
    for name, entry in manifest.files.items():
        make_directory((target / name).parent)
        try:
            with (directory / name).open("rb", buffering=0) as file:
                found = copy_stream(file, entry.size, target / name, progress)
        except EOFError as fault:
            raise BadBackup(f"{directory / name} was cut: {fault}") from None
        if found != entry:
            raise BadBackup(f"{directory / name} was changed: its checksum is another")


def check_room(directory: Path, needed: int, *, spare: int = 0) -> None:
    """Check that the disk has room, and `spare` bytes beside. Raises BackupError."""
    free = shutil.disk_usage(directory).free
    if free < needed + spare:
        beside = f" beside the {_size(spare)} that the broker keeps free" if spare else ""
        raise BackupError(
            f"{directory}: {_size(needed)} are needed{beside}, {_size(free)} are free; "
            "make room, or choose another disk"
        )


def _size(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MiB"


def reason(fault: OSError) -> str:
    if fault.errno == errno.ENOSPC:
        return "the disk is full"
    return fault.strerror or str(fault)


def remove_tree(path: Path) -> None:
    """Remove a backup or a part of one, its manifest first: what is left is no backup."""
    (path / "manifest.json").unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)
