"""A supervisor in the test's own loop, with children of a few lines."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from moldau.ops.serve.child_spec import ChildSpec
from moldau.ops.serve.supervisor import StartStages, Supervisor

OBEDIENT = """
import signal, sys
signal.signal(signal.SIGHUP, signal.SIG_IGN)
line = sys.stdin.readline()
print("ready", flush=True)
sys.stdin.read()
"""
BOOT_FAILURE = "import sys; sys.exit(3)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + OBEDIENT


def child(code: str, index: int = 0, **options: Any) -> ChildSpec:
    settings: dict[str, Any] = {"role": "worker", "stdin_line": b"{}", **options}
    return ChildSpec(index=index, argv=[sys.executable, "-c", code], **settings)


@asynccontextmanager
async def supervised(
    directory: Path, stages: StartStages, **options: Any
) -> AsyncIterator[Supervisor]:
    """A supervisor that is ready; SIGTERM at the end. What keeps it from starting is raised."""
    ready = asyncio.Event()
    supervisor = Supervisor(
        stages,
        port=1,
        control_path=directory / "control.sock",
        store={"url": "none"},
        on_ready=ready.set,
        **options,
    )
    running = asyncio.ensure_future(supervisor.run())
    waiting = asyncio.ensure_future(ready.wait())
    await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
    if not ready.is_set():
        waiting.cancel()
        await running
        pytest.fail("it ended before it was ready, without a reason")
    try:
        yield supervisor
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        await running


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - conditions on other processes have no event
            await asyncio.sleep(0.01)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False
