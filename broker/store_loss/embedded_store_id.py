"""The embedded store's id: kept while its append-only file lacks nothing that was acknowledged.

The server writes every command to the kernel before it replies, so the file of a killed server has
everything it acknowledged, with one exception: when a write fails (the disk is full), the server
keeps the bytes in memory, replies all the same, and tries again. So the file may be incomplete if
the machine crashed, if the file was cut, copied or replaced by an older one, or if a write failed
and the server ended before it succeeded. The supervisor notes the extent of the file at least four
times a second, and compares it before each start of the server. The id is kept

    after a clean stop, synced to disk              if the files are the very same
    otherwise, since the same boot of the machine   if the files are the same or newer, none is
                                                    shorter, and no write can have failed

In all other cases there is a new id, and workers check every log.

Space is allocated beyond the end of the file (its runway, see `ops/serve/disk_guard.py`). A write
that fails for lack of space has used all of it, so a file that ends well before the end of its
runway lacks no write. The file itself shows that, however quickly the processes were killed.

    <data dir>/history        the store id; workers read it with each connection
    <data dir>/store.extent   boot id; names, inodes and sizes of the files; the runway

Both are written in place once they exist: that needs no space.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
from pathlib import Path

import msgspec

from moldau.broker.store.append_only import sync_files

logger = logging.getLogger("moldau.store")

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
BLOCK = 512  # bytes; st_blocks counts in these, whatever the file system's own size
EXTENT_BYTES = 4096  # size of the file with the extent, filled up with spaces
_NAME = re.compile(r".*\.(\d+)\.(base|incr)\.(?:aof|rdb)")


class Extent(msgspec.Struct, frozen=True):
    """How much there is of the append-only file: inode and size of each part, by name."""

    boot: str
    files: dict[str, tuple[int, int]]
    is_clean: bool = False  # the server has stopped, and the file is synced
    allocated: int = 0  # bytes, for the part that is being written
    # No write can fail while that part is no longer than this; None: nothing can be allocated here.
    assured: int | None = None
    margin: int = 0  # bytes that were allocated beyond `assured`
    is_ample: bool = False  # the disk had so much room that no write can have failed soon after
    has_failed: bool = False  # a write failed, and is not known to have succeeded since
    ends_on_failure: bool = False  # the server ends before it replies (`appendfsync always`)

    def continues(self, noted: Extent) -> bool:
        """Is everything there that was there at `noted`?"""
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

    def may_lack_a_write(self, noted: Extent) -> bool:
        """Can an acknowledged write have failed, and not have succeeded later?"""
        if noted.is_clean or noted.ends_on_failure:
            return False
        if noted.has_failed:
            return True
        if noted.assured is None:
            return not noted.is_ample
        if self.written != noted.written:
            return True  # a rewrite began it since, and it has no runway yet
        size = self.written_size
        # A failed write is taken back with all that was allocated. The margin is halved because
        # file systems count some blocks of their own.
        return size > noted.assured or self.allocated - size < noted.margin // 2

    @property
    def written(self) -> str:
        """The name of the part that is being written; empty: there is none."""
        parts = [name for name in self.files if ".incr." in name]
        return max(parts, key=_number, default="")

    @property
    def written_size(self) -> int:
        return self.files[self.written][1] if self.written else 0


def _number(name: str) -> int:
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else 0


class EmbeddedStoreId:
    """`directory`: holds the parts of the append-only file."""

    def __init__(self, data_dir: Path, directory: Path, *, ends_on_failure: bool = False) -> None:
        self.file = data_dir / "history"
        self._extent_file = data_dir / "store.extent"
        self._directory = directory
        self._ends_on_failure = ends_on_failure
        self._noted: Extent | None = None

    def begin(self, *, margin: int = 0, is_ample: bool = False) -> None:
        """Keep the store id or choose a new one; called before each start of the server.

        `margin`, `is_ample`: describe the disk as it is now.
        """
        noted, found = self._read(), self.look()
        if noted is None or not self.file.exists():
            self._new_id()
        elif not found.continues(noted):
            logger.warning(
                "the store's append-only file may lack something: the machine crashed, or the "
                "file was changed. Logs that may have lost records begin a new leader epoch"
            )
            self._new_id()
        elif found.may_lack_a_write(noted):
            logger.critical(
                "the store's append-only file may lack records that were acknowledged: its disk "
                "was full, or nearly so, when the store ended. Logs that may have lost records "
                "begin a new leader epoch"
            )
            self._new_id()
        # No server runs, so what is allocated is assured to the next one.
        assured = found.allocated - margin
        has_runway = margin > 0 and found.written_size <= assured
        self._noted = None
        self.note(
            found,
            assured=assured if has_runway else None,
            margin=margin,
            is_ample=is_ample,
            # Otherwise a crash of the machine could leave the note of the last clean stop.
            sync=noted is not None and noted.is_clean,
        )

    def would_be_kept(self) -> bool:
        """Would `begin` keep the store id? Nothing is changed."""
        noted, found = self._read(), self.look()
        if noted is None or not self.file.exists():
            return False
        return found.continues(noted) and not found.may_lack_a_write(noted)

    def note(
        self,
        found: Extent,
        *,
        assured: int | None,
        margin: int = 0,
        is_ample: bool = False,
        sync: bool = False,
    ) -> None:
        """Note an extent: the running server has written all that it acknowledged before it."""
        # A file that was cut while the server was down is found by `begin`.
        if self._noted is None or found.continues(self._noted):
            changed = msgspec.structs.replace(
                found, assured=assured, margin=margin, is_ample=is_ample,
                ends_on_failure=self._ends_on_failure,
            )  # fmt: skip
            self._note(changed, sync=sync)

    def note_failure(self) -> None:
        """A write has failed: if the server ends before the next `note`, the store id changes."""
        noted = self._noted or self.look()
        self._note(msgspec.structs.replace(noted, has_failed=not self._ends_on_failure))

    def stopped(self, *, is_written: bool) -> None:
        """The server has ended: sync its file and note whether that is complete.

        `is_written`: it had written everything before it was asked to stop, with no client left.
        """
        sync_files(self._directory)
        found = self.look()
        noted = self._noted
        if is_written or (noted is not None and not found.may_lack_a_write(noted)):
            self._note(msgspec.structs.replace(found, is_clean=True), sync=True)
        else:
            logger.critical(
                "the store stopped with records that it could not write to its file: %s is full",
                self._directory,
            )
            self.note_failure()

    def look(self) -> Extent:
        files, allocated = {}, {}
        for path in self._directory.glob("*"):
            if _NAME.fullmatch(path.name) and not path.name.startswith("temp-"):
                with contextlib.suppress(FileNotFoundError):  # just replaced by a rewrite
                    facts = path.stat()
                    files[path.name] = (facts.st_ino, facts.st_size)
                    allocated[path.name] = facts.st_blocks * BLOCK
        try:
            boot = BOOT_ID.read_text().strip()
        except OSError:
            boot = ""  # not Linux: only a clean stop is trusted
        found = Extent(boot, files)
        return msgspec.structs.replace(found, allocated=allocated.get(found.written, 0))

    def path_of(self, found: Extent) -> Path:
        """The path of the part that is being written."""
        return self._directory / found.written

    def _new_id(self) -> None:
        _write(self.file, secrets.token_hex(16).encode(), sync=True)

    def _read(self) -> Extent | None:
        try:
            return msgspec.json.decode(self._extent_file.read_bytes(), type=Extent)
        except (OSError, msgspec.DecodeError):
            return None

    def _note(self, found: Extent, *, sync: bool = False) -> None:
        if found != self._noted:
            content = msgspec.json.encode(found)
            _write(self._extent_file, content.ljust(EXTENT_BYTES), sync=sync)
            self._noted = found


def _write(path: Path, content: bytes, *, sync: bool) -> None:
    """Write all of it or nothing. Without `sync` it survives this process, not the machine.

    A file that has this size already is overwritten: a full disk has no room for a new one. A file
    that a crash of the machine has torn cannot be read, or belongs to another boot.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY)
    except FileNotFoundError:
        descriptor = -1
    if descriptor >= 0:
        try:
            if os.fstat(descriptor).st_size == len(content):
                os.pwrite(descriptor, content, 0)
                if sync:
                    os.fsync(descriptor)
                return
        finally:
            os.close(descriptor)
    beside = path.with_name(path.name + ".new")
    with beside.open("wb") as file:
        file.write(content)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    beside.replace(path)
