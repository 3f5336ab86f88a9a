"""The embedded store keeps its id exactly as long as its file can lack nothing."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from moldau.broker.store_loss import embedded_store_id
from moldau.broker.store_loss.embedded_store_id import EXTENT_BYTES, EmbeddedStoreId
from moldau.ops.serve.allocation import Outcome, allocate_beyond

RUNWAY, MARGIN = 1 << 20, 1 << 18


class Files:
    """A data directory with the parts of an append-only file, and what starts a server on it."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self.directory = data_dir / "appendonlydir"
        self.directory.mkdir()
        self.write("appendonly.aof.1.base.rdb", b"base")
        self.write("appendonly.aof.1.incr.aof", b"0123456789")

    def write(self, name: str, content: bytes) -> None:
        (self.directory / name).write_bytes(content)

    @property
    def newest(self) -> Path:
        return self.directory / "appendonly.aof.1.incr.aof"

    def start(self, *, ends_on_failure: bool = False) -> EmbeddedStoreId:
        """A start on a disk with much room, where nothing can be allocated beyond a file's end."""
        store_id = EmbeddedStoreId(self._data_dir, self.directory, ends_on_failure=ends_on_failure)
        store_id.begin(is_ample=True)
        return store_id

    def start_with_runway(self) -> EmbeddedStoreId:
        store_id = EmbeddedStoreId(self._data_dir, self.directory)
        store_id.begin(margin=MARGIN)
        self.allocate(RUNWAY)
        found = store_id.look()
        store_id.note(found, assured=found.allocated - MARGIN, margin=MARGIN)
        return store_id

    def allocate(self, beyond: int) -> None:
        end = self.newest.stat().st_size + beyond
        if allocate_beyond(self.newest, end) is not Outcome.DONE:
            pytest.skip("nothing can be allocated beyond the end of a file here")

    def append(self, size: int) -> None:
        with self.newest.open("ab") as file:
            file.write(b"x" * size)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_the_first_start_chooses_an_id(files: Files) -> None:
    assert len(files.start().file.read_bytes()) == 32


def test_a_kill_of_everything_keeps_it(files: Files) -> None:
    store_id = files.start().file.read_bytes()
    with files.newest.open("ab") as file:
        file.write(b"more, not noted before the kill")
    assert files.start().file.read_bytes() == store_id


@pytest.mark.parametrize("size", [0, 5, 9])
def test_a_file_that_was_cut_begins_another(files: Files, size: int) -> None:
    store_id = files.start().file.read_bytes()
    os.truncate(files.newest, size)
    assert files.start().file.read_bytes() != store_id


def test_an_older_copy_begins_another(files: Files) -> None:
    store_id = files.start().file.read_bytes()
    content = files.newest.read_bytes()
    files.newest.rename(files.directory / "away")
    files.write(files.newest.name, content)  # the same bytes, another file
    assert files.start().file.read_bytes() != store_id


def test_a_file_that_is_gone_begins_another(files: Files) -> None:
    store_id = files.start().file.read_bytes()
    files.newest.unlink()
    assert files.start().file.read_bytes() != store_id


def test_a_rewrite_keeps_it(files: Files) -> None:
    store_id = files.start().file.read_bytes()
    for path in list(files.directory.iterdir()):
        path.unlink()
    files.write("appendonly.aof.2.base.rdb", b"all")
    files.write("appendonly.aof.2.incr.aof", b"")
    assert files.start().file.read_bytes() == store_id


def test_a_crash_of_the_machine_begins_another(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_id = files.start().file.read_bytes()
    (tmp_path / "boot").write_text("another boot")
    monkeypatch.setattr(embedded_store_id, "BOOT_ID", tmp_path / "boot")
    assert files.start().file.read_bytes() != store_id


def test_a_clean_stop_keeps_it_across_a_boot(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = files.start()
    store_id = running.file.read_bytes()
    with files.newest.open("ab") as file:
        file.write(b"more")
    running.stopped(is_written=True)
    (tmp_path / "boot").write_text("another boot")
    monkeypatch.setattr(embedded_store_id, "BOOT_ID", tmp_path / "boot")
    assert files.start().file.read_bytes() == store_id


def test_after_a_clean_stop_a_longer_file_is_another(files: Files) -> None:
    running = files.start()
    store_id = running.file.read_bytes()
    running.stopped(is_written=True)
    with files.newest.open("ab") as file:
        file.write(b"not ours")
    assert files.start().file.read_bytes() != store_id


# --- writes that failed ---


def test_a_file_that_ends_before_its_runway_lacks_nothing(files: Files) -> None:
    store_id = files.start_with_runway().file.read_bytes()
    files.append(RUNWAY - 2 * MARGIN)
    assert files.start_with_runway().file.read_bytes() == store_id


@pytest.mark.parametrize("size", [RUNWAY - MARGIN + 4096, RUNWAY, RUNWAY + 4096])
def test_a_file_that_has_used_up_its_runway_begins_another(files: Files, size: int) -> None:
    store_id = files.start_with_runway().file.read_bytes()
    files.append(size)
    assert files.start_with_runway().file.read_bytes() != store_id


def test_a_write_that_was_taken_back_begins_another(files: Files) -> None:
    """The server takes back a part of a write: the runway goes with it."""
    store_id = files.start_with_runway().file.read_bytes()
    size = files.newest.stat().st_size
    files.append(RUNWAY)
    os.truncate(files.newest, size)
    assert files.start_with_runway().file.read_bytes() != store_id


def test_a_part_of_the_file_that_has_no_runway_yet_begins_another(files: Files) -> None:
    store_id = files.start_with_runway().file.read_bytes()
    files.write("appendonly.aof.2.incr.aof", b"begun by a rewrite")
    assert files.start_with_runway().file.read_bytes() != store_id


@pytest.mark.parametrize("is_ample", [False, True])
def test_without_a_runway_much_room_has_to_be_left(files: Files, is_ample: bool) -> None:
    running = files.start()
    store_id = running.file.read_bytes()
    running.note(running.look(), assured=None, is_ample=is_ample)
    files.append(100)
    assert (files.start().file.read_bytes() == store_id) is is_ample


def test_a_write_that_failed_begins_another_unless_it_succeeded_later(files: Files) -> None:
    running = files.start()
    store_id = running.file.read_bytes()
    running.note_failure()
    running.note(running.look(), assured=None, is_ample=True)
    running = files.start()
    assert running.file.read_bytes() == store_id
    running.note_failure()
    assert files.start().file.read_bytes() != store_id


def test_a_stop_with_something_unwritten_is_not_clean(files: Files) -> None:
    running = files.start()
    store_id = running.file.read_bytes()
    running.note_failure()
    running.stopped(is_written=False)
    assert files.start().file.read_bytes() != store_id


def test_a_server_that_ends_when_a_write_fails_acknowledges_none(files: Files) -> None:
    running = files.start(ends_on_failure=True)
    store_id = running.file.read_bytes()
    running.note_failure()
    assert files.start().file.read_bytes() == store_id
    # It is a matter of how the server ran, not of how it is started next.
    files.start().note_failure()
    assert files.start(ends_on_failure=True).file.read_bytes() != store_id


def test_a_note_of_an_earlier_version_proves_nothing(files: Files, tmp_path: Path) -> None:
    running = files.start()
    store_id = running.file.read_bytes()
    found = running.look()
    note = {"boot": found.boot, "files": found.files}
    (tmp_path / "store.extent").write_bytes(msgspec.json.encode(note))
    assert files.start().file.read_bytes() != store_id


def test_notes_are_written_in_place(files: Files, tmp_path: Path) -> None:
    running = files.start()
    extent = tmp_path / "store.extent"
    inodes = extent.stat().st_ino, running.file.stat().st_ino
    running.note_failure()
    files.start()
    assert (extent.stat().st_ino, running.file.stat().st_ino) == inodes
    assert extent.stat().st_size == EXTENT_BYTES
