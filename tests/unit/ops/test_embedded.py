"""The embedded store's files reach the disk once a second, and only when they grew."""

import asyncio
import os
from pathlib import Path

import pytest

from broker.config import ConfigError
from ops import embedded


class Rounds:
    """Counts how often the files were looked at, so that tests wait for that and not for time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._count = 0
        self._real = embedded._sizes
        monkeypatch.setattr(embedded, "_sizes", self._counted)
        monkeypatch.setattr(embedded, "SYNC_INTERVAL_S", 0.01)

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


def test_what_grew_is_forced_to_disk_once(
    tmp_path: Path, synced: list[int], rounds: Rounds
) -> None:
    first, second = tmp_path / "a.1.incr.aof", tmp_path / "a.2.incr.aof"
    (tmp_path / "a.1.base.rdb").write_bytes(b"the server's own business")
    first.write_bytes(b"one")

    async def run() -> None:
        task = asyncio.ensure_future(embedded.sync_every_second(tmp_path))
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

    asyncio.run(run())


def test_a_failing_disk_is_said_and_tried_again(
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

    async def run() -> None:
        task = asyncio.ensure_future(embedded.sync_every_second(tmp_path))
        await rounds.more(5)
        task.cancel()

    asyncio.run(run())
    assert attempts == 2
    assert "cannot be forced to disk" in caplog.text


def test_the_servers_last_words_are_its_logs_last_line(tmp_path: Path) -> None:
    log = tmp_path / "store.log"
    assert "cannot be read: No such file" in embedded.last_log_line(log)
    log.write_text("x" * 10_000 + "\nfirst\nlast\n")
    assert embedded.last_log_line(log) == f"last (in {log})"


def test_without_a_server_for_this_platform_the_remedy_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"no embedded store for this platform .* --redis"):
        embedded.server_binary()
