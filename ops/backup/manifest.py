"""The manifest of a backup: what is in it, with checksums. Pure but for reading the one file.

    DIR/manifest.json              written last: a directory without it is no backup
    DIR/store/appendonlydir/...    the store's append-only file, up to the mark
    DIR/security/...               what `serve --secure` keeps in the data directory

The manifest has a checksum of itself, so one that was changed is found out as well.
"""

from __future__ import annotations

import hashlib
from pathlib import Path, PurePosixPath

import msgspec

from moldau.broker.store.backup import Mark

MANIFEST = "manifest.json"
STORE, SECURITY = "store", "security"
APPEND_ONLY = f"{STORE}/appendonlydir"
FORMAT = 1  # of the backup; the store's is in the mark


class BadBackup(ValueError):
    """It cannot be used; the text names what and why."""


class FileEntry(msgspec.Struct, frozen=True):
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    backup_format: int
    version: str  # of Moldau
    store_id: str
    mark: Mark
    files: dict[str, FileEntry]  # by path below the directory
    sha256: str = ""  # of the manifest with this empty

    @property
    def bytes(self) -> int:
        return sum(entry.size for entry in self.files.values())


def encoded(manifest: Manifest) -> bytes:
    """The content of the file, with its checksum."""
    sealed = msgspec.structs.replace(manifest, sha256=_checksum(manifest))
    return msgspec.json.format(msgspec.json.encode(sealed)) + b"\n"


def _checksum(manifest: Manifest) -> str:
    bare = msgspec.json.encode(msgspec.structs.replace(manifest, sha256=""), order="sorted")
    return hashlib.sha256(bare).hexdigest()


def read_manifest(directory: Path) -> Manifest:
    """Raises BadBackup."""
    path = directory / MANIFEST
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        what = "is not a directory" if not directory.is_dir() else f"has no {MANIFEST}"
        raise BadBackup(
            f"{directory} is no backup: it {what}; one that was interrupted has none either"
        ) from None
    except OSError as fault:
        raise BadBackup(f"{path} cannot be read: {fault.strerror}") from None
    return decoded(content, path)


def decoded(content: bytes, path: Path) -> Manifest:
    """Raises BadBackup."""
    try:
        number = msgspec.json.decode(content, type=_Format).backup_format
    except msgspec.DecodeError as fault:
        raise BadBackup(f"{path} was cut or changed: {fault}") from None
    if number > FORMAT:
        raise BadBackup(
            f"{path} has backup format {number}, this version knows {FORMAT}: a newer Moldau wrote "
            "it, use that one"
        )
    try:
        manifest = msgspec.json.decode(content, type=Manifest)
    except msgspec.DecodeError as fault:
        raise BadBackup(f"{path} was changed: {fault}") from None
    if manifest.sha256 != _checksum(manifest):
        raise BadBackup(f"{path} was changed: its checksum is another")
    for name in manifest.files:
        parts = PurePosixPath(name)
        if parts.is_absolute() or ".." in parts.parts:
            raise BadBackup(f"{path} names a file outside of the backup: {name}")
    return manifest


class _Format(msgspec.Struct):
    backup_format: int
