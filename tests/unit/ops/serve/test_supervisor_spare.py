"""The supervisor's spare process: used, replaced, not used."""

import os
import signal
from pathlib import Path

import pytest

from moldau.ops.serve import health
from moldau.ops.serve import spare as spare_module
from moldau.ops.serve.children import State
from tests.unit.ops.serve.supervised import OBEDIENT, child, is_gone, supervised, until

# As the supervisor itself runs, not as workers do.
pytestmark = pytest.mark.stdlib_loop


BECOMES_ANYTHING = """
import sys
role = sys.stdin.readline().strip()
settings = sys.stdin.readline().strip()
if role:
    print("was a spare:", role, settings, flush=True)
    print("ready", flush=True)
    sys.stdin.read()
"""


async def test_the_spare_becomes_the_worker_that_died(
    short_tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(spare_module, "FIRST_DELAY_S", 0.01)
    spec = child(BECOMES_ANYTHING, role="spare", stdin_line=b"")
    stages = [[child(OBEDIENT, role="store"), child(OBEDIENT, stdin_line=b"my settings")]]
    async with supervised(short_tmp_path, stages, spare=spec) as supervisor:
        store, worker = supervisor.children
        spare = supervisor.spare
        assert spare is not None
        await until(lambda: spare.pid is not None)
        first = spare.pid
        assert [each["role"] for each in supervisor.status()["processes"]] == [
            "supervisor",
            "store",
            "worker",
        ]
        store.kill()  # a spare is no store
        await until(lambda: store.state is State.RUNNING and store.restarts == 1)
        assert spare.pid == first
        worker.kill()
        await until(lambda: worker.state is State.RUNNING and worker.restarts == 1)
        assert worker.pid == first
        assert "worker 0: was a spare: worker my settings" in caplog.text
        await until(lambda: spare.pid is not None)
        last = spare.pid
        assert last not in (None, first)
    assert last is not None
    assert is_gone(last)


async def test_a_spare_that_dies_is_replaced_quietly(
    short_tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(spare_module, "FIRST_DELAY_S", 0.01)
    spec = child(BECOMES_ANYTHING, role="spare", stdin_line=b"")
    async with supervised(short_tmp_path, [[child(OBEDIENT)]], spare=spec) as supervisor:
        spare = supervisor.spare
        assert spare is not None
        await until(lambda: spare.pid is not None)
        first = spare.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await until(lambda: spare.pid not in (None, first))
        assert supervisor.children[0].restarts == 0
    assert not caplog.messages


async def test_a_spare_that_was_stopped_is_not_used(
    short_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spare_module, "FIRST_DELAY_S", 0.01)
    spec = child(BECOMES_ANYTHING, role="spare", stdin_line=b"")
    async with supervised(short_tmp_path, [[child(OBEDIENT)]], spare=spec) as supervisor:
        worker, spare = supervisor.children[0], supervisor.spare
        assert spare is not None
        await until(lambda: spare.pid is not None)
        stopped = spare.pid
        assert stopped is not None
        os.kill(stopped, signal.SIGSTOP)
        await until(lambda: health.is_stopped(stopped))
        worker.kill()
        await until(lambda: worker.state is State.RUNNING and worker.restarts == 1)
        assert worker.pid != stopped
        await until(lambda: spare.pid not in (None, stopped))
        assert is_gone(stopped)
