"""The embedded store's files: synced when they grew, rewritten when worth it, its log rotated."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from moldau.broker.store import append_only
from moldau.ops.serve import store_files

pytestmark = pytest.mark.stdlib_loop  # as the supervisor runs it

MIB = 1 << 20


class Rounds:
    """Counts how often the files were looked at, so that tests wait for that and not for time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._count = 0
        self._real = append_only.written_sizes
        monkeypatch.setattr(store_files, "written_sizes", self._counted)
        monkeypatch.setattr(store_files, "SYNC_INTERVAL_S", 0.01)

    def _counted(self, directory: Path) -> dict[str, int]:
        self._count += 1
        return self._real(directory)

    async def more(self, count: int) -> None:
        wanted = self._count + count
        async with asyncio.timeout(30):
            while self._count < wanted:  # noqa: ASYNC110
                await asyncio.sleep(0.005)


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Rounds:
    return Rounds(monkeypatch)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The inodes of the files forced to disk, in order."""
    inodes: list[int] = []
    monkeypatch.setattr(os, "fdatasync", lambda fd: inodes.append(os.fstat(fd).st_ino))
    return inodes


async def test_what_grew_is_forced_to_disk_once(
    tmp_path: Path, synced: list[int], rounds: Rounds
) -> None:
    first, second = tmp_path / "a.1.incr.aof", tmp_path / "a.2.incr.aof"
    (tmp_path / "a.1.base.rdb").write_bytes(b"the server's own business")
    first.write_bytes(b"one")

    task = asyncio.ensure_future(store_files.sync_every_second(tmp_path))
    one = first.stat().st_ino
    await rounds.more(4)
    assert synced == [one]
    with first.open("ab") as file:
        file.write(b"two")
    second.write_bytes(b"three")
    await rounds.more(4)
    assert sorted(synced) == sorted([one, one, second.stat().st_ino])
    first.unlink()  # as after a rewrite
    await rounds.more(3)
    assert len(synced) == 3
    task.cancel()


async def test_a_failing_disk_is_logged_and_retried(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    rounds: Rounds,
) -> None:
    (tmp_path / "a.1.incr.aof").write_bytes(b"one")
    attempts = 0

    def fdatasync(_: int) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fdatasync)

    task = asyncio.ensure_future(store_files.sync_every_second(tmp_path))
    await rounds.more(5)
    task.cancel()
    assert attempts == 2
    assert "cannot be forced to disk" in caplog.text


def info(**changed: Any) -> dict[str, Any]:
    usual = {"aof_current_size": 1000 * MIB, "used_memory": 400 * MIB, "loading": 0}
    return {**usual, "aof_rewrite_in_progress": 0, **changed}


def test_a_file_is_rewritten_when_most_of_it_is_obsolete() -> None:
    assert store_files.is_worth_rewriting(info(), room=400 * MIB)
    found = info(aof_current_size=300 * MIB, used_memory=MIB)
    assert store_files.is_worth_rewriting(found, room=MIB)


@pytest.mark.parametrize(
    "found",
    [
        info(used_memory=500 * MIB),  # a log that only grows
        info(aof_current_size=100 * MIB, used_memory=MIB),  # not worth a fork
        info(aof_rewrite_in_progress=1),
        info(loading=1),
    ],
)
def test_otherwise_it_is_left_alone(found: dict[str, Any]) -> None:
    assert not store_files.is_worth_rewriting(found, room=1000 * MIB)


def test_a_copy_that_does_not_fit_is_not_made() -> None:
    assert not store_files.is_worth_rewriting(info(), room=399 * MIB)
    assert not store_files.is_worth_rewriting(info(), room=399 * MIB, is_short=True)


def test_a_smaller_gain_will_do_when_the_disk_is_short_of_room() -> None:
    found = info(aof_current_size=13 * MIB, used_memory=10 * MIB)
    assert store_files.is_worth_rewriting(found, room=10 * MIB, is_short=True)
    assert not store_files.is_worth_rewriting(found, room=10 * MIB)
    found = info(aof_current_size=12 * MIB, used_memory=10 * MIB)
    assert not store_files.is_worth_rewriting(found, room=10 * MIB, is_short=True)


def test_what_a_killed_rewrite_left_is_removed(tmp_path: Path) -> None:
    directory = tmp_path / "appendonlydir"
    directory.mkdir()
    left = [tmp_path / "temp-rewriteaof-bg-12.aof", tmp_path / "temp-12.rdb"]
    left.append(directory / "temp-appendonly.aof.2.incr.aof")
    kept = [directory / "appendonly.aof.1.base.rdb", directory / "appendonly.aof.1.incr.aof"]
    for path in [*left, *kept]:
        path.write_bytes(b"x")

    store_files.remove_leftovers(tmp_path)

    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == sorted(kept)


def test_the_log_and_the_one_before_it_are_kept(tmp_path: Path) -> None:
    log, before = tmp_path / "store.log", tmp_path / "store.log.1"
    store_files.rotate_if_large(log, 10)
    assert not before.exists()
    for number in range(3):
        log.write_text(f"line {number} of a log\n")
        store_files.rotate_if_large(log, 10)
        assert before.read_text() == f"line {number} of a log\n"
        assert not log.exists()
    log.write_text("short\n")
    store_files.rotate_if_large(log, 10)
    assert log.read_text() == "short\n"
