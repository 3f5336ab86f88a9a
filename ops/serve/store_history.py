"""The embedded store's history token: kept as long as its append-only file can lack nothing.

Every command reaches the kernel before its reply, so what a killed server acknowledged is in the
file. It can lack something only when the machine crashed, or when the file was cut, exchanged for
an older one, or copied. So the extent of the file is noted four times a second, and compared before
each start of the server:

    after a clean stop, synced to disk              the very same files
    otherwise, since the same boot of the machine   the same files, or newer ones; none shorter
    anything else                                   a new token: workers check every log

    <data dir>/history        the token, read by workers with each connection
    <data dir>/store.extent   boot id; names, inodes and sizes of the files
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import secrets
from pathlib import Path

import msgspec

from ops.serve.store_files import sync_files

logger = logging.getLogger("moldau.store")

NOTE_SECONDS = 0.25
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NAME = re.compile(r".*\.(\d+)\.(base|incr)\.(?:aof|rdb)")


class Extent(msgspec.Struct, frozen=True):
    """How much there is of the append-only file, by the names of its parts: inode and size."""

    boot: str
    files: dict[str, tuple[int, int]]
    is_clean: bool = False  # synced, and the server has stopped

    def continues(self, noted: Extent) -> bool:
        """Can nothing be missing that was there when `noted` was?"""
        if noted.is_clean:
            return self.files == noted.files
        if not self.boot or self.boot != noted.boot:
            return False
        newest = max(map(_number, self.files), default=0)
        for name, (inode, size) in noted.files.items():
            found = self.files.get(name)
            if found is None:
                # Replaced by a rewrite, which begins files with the next number.
                if newest <= _number(name):
                    return False
            elif found[0] != inode or found[1] < size:
                return False
        return True


def _number(name: str) -> int:
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else 0


class EmbeddedStoreHistory:
    """`directory`: of the append-only file's parts."""

    def __init__(self, data_dir: Path, directory: Path) -> None:
        self.file = data_dir / "history"
        self._extent_file = data_dir / "store.extent"
        self._directory = directory
        self._noted: Extent | None = None

    def begin(self) -> None:
        """Before each start of the server: keep the token, or begin a new history."""
        noted, found = self._read(), self._look()
        if noted is None or not self.file.exists() or not found.continues(noted):
            if noted is not None:
                logger.warning(
                    "the store's append-only file may lack something: the machine crashed, or the "
                    "file was changed. Logs that may have lost records begin a new leader epoch"
                )
            _write(self.file, secrets.token_hex(16).encode(), sync=True)
        self._note(found)

    async def keep_noting(self) -> None:
        """While the server runs; until cancelled."""
        while True:
            await asyncio.sleep(NOTE_SECONDS)
            try:
                found = self._look()
                # A file that was cut while the server was down is found by `begin`.
                if self._noted is None or found.continues(self._noted):
                    self._note(found)
            except OSError:
                logger.exception("the extent of the append-only file cannot be noted")

    def stopped(self) -> None:
        """The server has ended: make sure of its file."""
        sync_files(self._directory)
        found = self._look()
        self._note(msgspec.structs.replace(found, is_clean=True), sync=True)

    def _look(self) -> Extent:
        files = {}
        for path in self._directory.glob("*"):
            if _NAME.fullmatch(path.name) and not path.name.startswith("temp-"):
                with contextlib.suppress(FileNotFoundError):  # just replaced by a rewrite
                    facts = path.stat()
                    files[path.name] = (facts.st_ino, facts.st_size)
        try:
            boot = BOOT_ID.read_text().strip()
        except OSError:
            boot = ""  # not Linux: only a clean stop is trusted
        return Extent(boot, files)

    def _read(self) -> Extent | None:
        try:
            return msgspec.json.decode(self._extent_file.read_bytes(), type=Extent)
        except (OSError, msgspec.DecodeError):
            return None

    def _note(self, found: Extent, *, sync: bool = False) -> None:
        if found != self._noted:
            _write(self._extent_file, msgspec.json.encode(found), sync=sync)
            self._noted = found


def _write(path: Path, content: bytes, *, sync: bool) -> None:
    """All of it or nothing. Without `sync` it survives this process, not the machine."""
    beside = path.with_name(path.name + ".new")
    with beside.open("wb") as file:
        file.write(content)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    beside.replace(path)
