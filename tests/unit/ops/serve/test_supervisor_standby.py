"""The supervisor of a standby: waits with everything loaded, serves, gives up."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moldau.ops.serve import spare as spare_module
from moldau.ops.serve.children import State
from moldau.ops.serve.standby import Tenure
from moldau.ops.serve.supervisor import Supervisor
from tests.unit.ops.serve.supervised import DEAF, OBEDIENT, child, is_gone, until
from tests.unit.ops.serve.test_supervisor_spare import BECOMES_ANYTHING

# As the supervisor itself runs, not as workers do.
pytestmark = pytest.mark.stdlib_loop


class Lease:
    """The lease of a store: taken and lost when the test says so."""

    def __init__(self) -> None:
        self.taken, self.lost, self.stands_by = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.is_serving: Callable[[], bool] = lambda: False

    async def keep(self, is_serving: Callable[[], bool]) -> None:
        self.is_serving = is_serving
        await self.lost.wait()

    async def until_taken(self) -> None:
        await self.taken.wait()

    def tenure(self, *codes: str) -> Tenure:
        """Of a standby whose workers run `codes`."""
        return Tenure(
            self.keep,
            lambda: {"role": "either"},
            until_taken=self.until_taken,
            stages=lambda: [[child(code, index) for index, code in enumerate(codes)]],
            on_standby=self.stands_by.set,
            warm=[child(BECOMES_ANYTHING, role="spare", stdin_line=b"")] * len(codes),
        )


class Started:
    def __init__(self, directory: Path, tenure: Tenure, **options: Any) -> None:
        self.ready = asyncio.Event()
        self.supervisor = Supervisor(
            [],
            port=1,
            control_path=directory / "control.sock",
            store={"url": "none"},
            on_ready=self.ready.set,
            tenure=tenure,
            **options,
        )
        self.running = asyncio.ensure_future(self.supervisor.run())

    @property
    def state(self) -> str:
        return str(self.supervisor.status()["processes"][0]["state"])


async def test_it_waits_loaded_and_then_serves_with_what_it_loaded(
    short_tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(spare_module, "FIRST_DELAY_S", 0.01)
    lease = Lease()
    started = Started(short_tmp_path, lease.tenure(OBEDIENT, OBEDIENT))
    await lease.stands_by.wait()
    assert started.state == State.STANDBY
    warm = started.supervisor._warm
    await until(lambda: all(spare.pid is not None for spare in warm._spares))
    loaded = {spare.pid for spare in warm._spares}
    assert started.supervisor.status()["lease"] == {"role": "either"}
    assert not started.ready.is_set()
    lease.taken.set()
    await started.ready.wait()
    assert started.state == State.RUNNING
    assert lease.is_serving()
    workers = started.supervisor.children
    assert {worker.pid for worker in workers} == loaded
    assert "was a spare: worker {}" in caplog.text
    os.kill(os.getpid(), signal.SIGTERM)
    assert not await started.running


async def test_it_ends_at_once_while_it_waits(
    short_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spare_module, "FIRST_DELAY_S", 0.01)
    lease = Lease()
    beside = child(DEAF, role="http")
    started = Started(short_tmp_path, lease.tenure(OBEDIENT), companions=[beside])
    await lease.stands_by.wait()
    warm = started.supervisor._warm
    await until(lambda: warm._spares[0].pid is not None)
    (http,) = started.supervisor.children
    await until(lambda: http.state is State.RUNNING)
    pids = [warm._spares[0].pid, http.pid]
    os.kill(os.getpid(), signal.SIGTERM)
    assert not await started.running
    assert all(pid is not None and is_gone(pid) for pid in pids)
    assert http.exit_code == -signal.SIGKILL  # nobody waits for it to end in order


async def test_one_that_loses_the_store_stops_at_once_and_says_so(short_tmp_path: Path) -> None:
    lease = Lease()
    lease.taken.set()
    started = Started(short_tmp_path, lease.tenure(DEAF))
    await started.ready.wait()
    (worker,) = started.supervisor.children
    lease.lost.set()
    assert await started.running
    assert worker.exit_code == -signal.SIGKILL


async def test_a_broker_that_cannot_be_had_ends_the_wait(short_tmp_path: Path) -> None:
    lease = Lease()

    async def fails() -> None:
        raise OSError("not ours")

    tenure = lease.tenure(OBEDIENT)
    tenure.until_taken = fails
    with pytest.raises(OSError, match="not ours"):
        await Started(short_tmp_path, tenure).running
