"""The embedded store keeps its history exactly as long as its file can lack nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ops.serve import store_history
from ops.serve.store_history import EmbeddedStoreHistory


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

    def start(self) -> EmbeddedStoreHistory:
        history = EmbeddedStoreHistory(self._data_dir, self.directory)
        history.begin()
        return history


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_the_first_start_begins_a_history(files: Files) -> None:
    assert len(files.start().file.read_bytes()) == 32


def test_a_kill_of_everything_keeps_it(files: Files) -> None:
    token = files.start().file.read_bytes()
    with files.newest.open("ab") as file:
        file.write(b"more, not noted before the kill")
    assert files.start().file.read_bytes() == token


@pytest.mark.parametrize("size", [0, 5, 9])
def test_a_file_that_was_cut_begins_another(files: Files, size: int) -> None:
    token = files.start().file.read_bytes()
    os.truncate(files.newest, size)
    assert files.start().file.read_bytes() != token


def test_an_older_copy_begins_another(files: Files) -> None:
    token = files.start().file.read_bytes()
    content = files.newest.read_bytes()
    files.newest.rename(files.directory / "away")
    files.write(files.newest.name, content)  # the same bytes, another file
    assert files.start().file.read_bytes() != token


def test_a_file_that_is_gone_begins_another(files: Files) -> None:
    token = files.start().file.read_bytes()
    files.newest.unlink()
    assert files.start().file.read_bytes() != token


def test_a_rewrite_keeps_it(files: Files) -> None:
    token = files.start().file.read_bytes()
    for path in list(files.directory.iterdir()):
        path.unlink()
    files.write("appendonly.aof.2.base.rdb", b"all")
    files.write("appendonly.aof.2.incr.aof", b"")
    assert files.start().file.read_bytes() == token


def test_a_crash_of_the_machine_begins_another(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = files.start().file.read_bytes()
    (tmp_path / "boot").write_text("another boot")
    monkeypatch.setattr(store_history, "BOOT_ID", tmp_path / "boot")
    assert files.start().file.read_bytes() != token


def test_a_clean_stop_keeps_it_across_a_boot(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = files.start()
    token = running.file.read_bytes()
    with files.newest.open("ab") as file:
        file.write(b"more")
    running.stopped()
    (tmp_path / "boot").write_text("another boot")
    monkeypatch.setattr(store_history, "BOOT_ID", tmp_path / "boot")
    assert files.start().file.read_bytes() == token


def test_after_a_clean_stop_a_longer_file_is_another(files: Files) -> None:
    running = files.start()
    token = running.file.read_bytes()
    running.stopped()
    with files.newest.open("ab") as file:
        file.write(b"not ours")
    assert files.start().file.read_bytes() != token
