"""The guard of the embedded store's disk, with a real server whose writes are made to fail.

A limit on the size of its files stands for a full disk: no right to mount is needed, and room is
made by raising it (tests/chaos/test_full_disk.py has real file systems).
"""

from __future__ import annotations

import asyncio
import functools
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from moldau.broker.settings.processes import ServeSettings
from moldau.broker.store.local_server import NOTHING_MORE, is_disk_limit
from moldau.ops.serve import disk_guard, embedded_store
from moldau.ops.serve.disk_room import MIB, Room
from moldau.ops.serve.embedded_store import EmbeddedStore

pytestmark = [
    pytest.mark.stdlib_loop,  # as the supervisor runs it
    pytest.mark.skipif(sys.platform != "linux", reason="prlimit is Linux's"),
]

NO_LIMIT = resource.RLIM_INFINITY


class Disk:
    """A disk with so much room, whatever the real one has."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room = Room(free=100 * MIB, total=200 * MIB)
        monkeypatch.setattr(disk_guard, "Room", self)

    def of(self, _: Path) -> Room:
        return self.room

    def leave(self, free: int) -> None:
        self.room = Room(free, self.room.total)


class Running:
    """The server with its guard, without a supervisor."""

    def __init__(self, store: EmbeddedStore) -> None:
        self.store = store
        self.guard = store.guard
        self.client = redis.Redis(unix_socket_path=store.socket)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def value(self) -> bytes:
        return self.store.store_id.file.read_bytes()

    @property
    def limit(self) -> int:
        return int(self.client.config_get("maxmemory")["maxmemory"] or 0)

    async def start(self) -> None:
        spec = self.store.spec
        assert spec.before_start is not None
        assert spec.late_argv is not None
        assert spec.ready_probe is not None
        spec.before_start()
        self._process = subprocess.Popen(  # noqa: ASYNC220
            [*spec.argv, *spec.late_argv()],
            stdout=subprocess.DEVNULL,
            preexec_fn=functools.partial(signal.signal, signal.SIGXFSZ, signal.SIG_IGN),
        )
        async with asyncio.timeout(30):
            while not await spec.ready_probe():  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    def let_writes_fail(self) -> None:
        files = self.store.append_only.glob("*.incr.aof")
        self._set_limit(max(path.stat().st_size for path in files) + 1000)

    def let_writes_succeed(self) -> None:
        self._set_limit(NO_LIMIT)

    def _set_limit(self, soft: int) -> None:
        assert self._process is not None
        resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (soft, NO_LIMIT))

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    async def stop(self) -> None:
        await self.guard.finish()
        assert self._process is not None
        self._process.terminate()
        self._process.wait()
        self.guard.stopped()


Test = Callable[..., Coroutine[Any, Any, None]]


def on_a_server(test: Test) -> Test:
    """Start it before, and let go of it in the same event loop."""

    @functools.wraps(test)
    async def run(store: Running, **fixtures: Any) -> None:
        await store.start()
        try:
            await test(store, **fixtures)
        finally:
            await store.guard.finish()

    return run


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
def store(disk: Disk, short_tmp_path: Path) -> Iterator[Running]:
    settings = ServeSettings(data_dir=str(short_tmp_path / "data"))
    prepared = Running(embedded_store.prepare(settings, short_tmp_path))
    yield prepared
    prepared.kill()
    prepared.client.close()


def append(store: Running, size: int = 10_000) -> None:
    store.client.xadd("log", {"b": b"x" * size})


# --- the mark ---


@on_a_server
async def test_below_the_mark_writes_are_refused_and_the_rest_goes_on(
    store: Running, disk: Disk
) -> None:
    append(store)
    assert is_disk_limit(store.limit)
    disk.leave(store.guard.marks.min_free - 1)
    await store.guard.look()
    assert store.limit == NOTHING_MORE
    assert store.guard.facts["refuses_writes"]
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        append(store)
    assert store.client.xlen("log") == 1
    assert store.client.xtrim("log", maxlen=0) == 1
    assert store.client.delete("log") == 1

    disk.leave(store.guard.marks.min_free + 1)
    await store.guard.look()
    assert store.limit == NOTHING_MORE, "not yet"
    disk.leave(store.guard.marks.enough_again)
    await store.guard.look()
    append(store)
    assert not store.guard.facts["refuses_writes"]


@on_a_server
async def test_a_server_that_starts_below_the_mark_refuses_from_the_first_command_on(
    store: Running, disk: Disk
) -> None:
    disk.leave(0)
    store.kill()
    store.guard.before_start()
    assert store.guard.late_argv() == ("--maxmemory", str(NOTHING_MORE))
    await store.start()
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        append(store)


@on_a_server
async def test_what_is_said_of_a_full_disk_is_said_once(
    store: Running, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    disk.leave(0)
    for _ in range(20):
        await store.guard.look()
    assert caplog.text.count("THE DISK of") == 1
    disk.leave(100 * MIB)
    await store.guard.look()
    assert caplog.text.count("there is room again") == 1


# --- writes that fail ---


@on_a_server
async def test_a_write_that_failed_changes_the_store_id(store: Running) -> None:
    append(store)
    value = store.value
    store.let_writes_fail()
    append(store)  # acknowledged all the same
    assert store.client.info("persistence")["aof_last_write_status"] == "err"
    await store.guard.look()
    assert store.guard.facts["last_write_failed"]
    assert store.limit == NOTHING_MORE
    store.kill()
    await store.start()
    assert store.client.xlen("log") == 1, "so it is lost"
    assert store.value != value
    append(store)


@on_a_server
async def test_a_write_that_succeeded_later_does_not(store: Running) -> None:
    value = store.value
    store.let_writes_fail()
    append(store)
    await store.guard.look()
    store.let_writes_succeed()
    await store.guard.look()
    assert not store.guard.facts["last_write_failed"]
    await store.guard.look()
    append(store)
    store.kill()
    await store.start()
    assert store.client.xlen("log") == 2
    assert store.value == value


@pytest.mark.parametrize("succeeds", [False, True])
@on_a_server
async def test_a_stop_is_clean_if_everything_was_written(store: Running, succeeds: bool) -> None:
    value = store.value
    store.let_writes_fail()
    append(store)
    if succeeds:
        store.let_writes_succeed()
    await store.stop()
    await store.start()
    assert store.client.xlen("log") == int(succeeds)
    assert (store.value == value) is succeeds


@on_a_server
async def test_a_kill_of_a_healthy_server_keeps_the_store_id(store: Running) -> None:
    value = store.value
    for _ in range(50):
        append(store)
    store.kill()
    await store.start()
    assert store.client.xlen("log") == 50
    assert store.value == value


@on_a_server
async def test_the_reserve_is_given_up_when_a_write_failed_and_made_again(
    store: Running, disk: Disk
) -> None:
    reserve = Path(store.store.store_id.file).with_name("reserve")
    assert reserve.stat().st_size == store.guard.marks.reserve
    store.let_writes_fail()
    append(store)
    await store.guard.look()
    assert reserve.stat().st_size == 0
    disk.leave(0)
    store.let_writes_succeed()
    await store.guard.look()
    await store.guard.look()
    assert reserve.stat().st_size == 0, "there is no room for it"
    disk.leave(100 * MIB)
    await store.guard.look()
    assert reserve.stat().st_size == store.guard.marks.reserve
