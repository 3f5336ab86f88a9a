"""Children that hang or are stopped are replaced; those that answer are left alone."""

import asyncio
import signal
from pathlib import Path

import pytest

from moldau.ops.serve import health
from moldau.ops.serve.children import State
from tests.unit.ops.serve.supervised import OBEDIENT, child, supervised, until

# As the supervisor itself runs, not as workers do.
pytestmark = pytest.mark.stdlib_loop


async def test_a_child_that_hangs_is_replaced(
    short_tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(health, "PING_INTERVAL_S", 0.05)
    monkeypatch.setattr(health, "PING_PATIENCE_S", 0.2)
    path = short_tmp_path / "ping.sock"
    # Accepts connections, and never answers: exactly what a hanging event loop looks like.
    code = (
        "import socket, sys, os\n"
        f"path = {str(path)!r}\n"
        "if os.path.exists(path): os.unlink(path)\n"
        "server = socket.socket(socket.AF_UNIX); server.bind(path); server.listen(100)\n"
    ) + OBEDIENT

    async with supervised(short_tmp_path, [[child(code, ping=str(path))]]) as supervisor:
        await until(lambda: supervisor.children[0].restarts >= 1)
    assert "worker 0 hangs: killed, to be restarted" in caplog.text


async def test_a_stopped_child_is_replaced_long_before_its_pings_are_given_up(
    short_tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(health, "PING_INTERVAL_S", 1_000)
    monkeypatch.setattr(health, "LOOK_INTERVAL_S", 0.05)

    async with supervised(short_tmp_path, [[child(OBEDIENT, ping="never asked")]]) as supervisor:
        worker = supervisor.children[0]
        # Stopped for a moment only: nothing is done about it.
        worker.signal(signal.SIGSTOP)
        await asyncio.sleep(0.05)
        worker.signal(signal.SIGCONT)
        await asyncio.sleep(0.5)
        assert worker.restarts == 0
        worker.signal(signal.SIGSTOP)
        await until(lambda: worker.restarts == 1 and worker.state is State.RUNNING)
    assert "worker 0 hangs: killed, to be restarted (it was stopped" in caplog.text


async def test_a_child_that_answers_pings_is_left_alone(
    short_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "PING_INTERVAL_S", 0.01)
    path = short_tmp_path / "ping.sock"
    pings = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal pings
        request = await reader.readexactly(14)
        assert request[4:8] == b"\x00\x12\x00\x00"  # ApiVersions, version 0
        writer.write(b"\x00\x00\x00\x04" + request[8:12])
        await writer.drain()
        writer.close()
        pings += 1

    async with supervised(short_tmp_path, [[child(OBEDIENT, ping=str(path))]]) as supervisor:
        async with await asyncio.start_unix_server(answer, path):
            await until(lambda: pings >= 5)
        assert supervisor.children[0].restarts == 0
