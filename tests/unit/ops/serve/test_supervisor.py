"""The supervisor with children of a few lines: order, restarts, back-off, hangs, the end."""

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.process import BootFailure
from ops.serve import health
from ops.serve import spare as spare_module
from ops.serve import supervisor as supervisor_module
from ops.serve.child_spec import ChildSpec
from ops.serve.children import State
from ops.serve.supervisor import StartStages, Supervisor

OBEDIENT = """
import signal, sys
line = sys.stdin.readline()
print("ready", flush=True)
sys.stdin.read()
"""
BOOT_FAILURE = "import sys; sys.exit(3)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + OBEDIENT

# As the supervisor itself runs, not as workers do.
pytestmark = pytest.mark.stdlib_loop


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


async def test_stages_start_in_order_and_stop_backwards(short_tmp_path: Path) -> None:
    record = short_tmp_path / "record"
    code = f"""
import signal, sys, time
def note(what):
    with open({str(record)!r}, "a") as file:
        file.write(what + "\\n")
def leave(*_):
    note("stop " + name)
    sys.exit(0)
name = sys.stdin.readline().strip()
signal.signal(signal.SIGTERM, leave)
note("start " + name)
time.sleep(0.1)
note("ready " + name)
print("ready", flush=True)
sys.stdin.read()
"""
    stages = [
        [child(code, stdin_line=b"one")],
        [child(code, 1, stdin_line=b"two")],
    ]
    async with supervised(short_tmp_path, stages) as supervisor:
        pass
    assert record.read_text().splitlines() == [
        "start one",
        "ready one",
        "start two",
        "ready two",
        "stop two",
        "stop one",
    ]
    assert [child.state for child in supervisor.children] == [State.STOPPED, State.STOPPED]


async def test_a_killed_child_is_restarted_and_the_others_are_left_alone(
    short_tmp_path: Path,
) -> None:
    async with supervised(short_tmp_path, [[child(OBEDIENT), child(OBEDIENT, 1)]]) as supervisor:
        first, second = supervisor.children
        pids = first.pid, second.pid
        assert first.pid is not None
        os.kill(first.pid, signal.SIGKILL)
        await until(lambda: first.state is State.RUNNING and first.restarts == 1)
        assert first.pid not in (None, pids[0])
        assert (first.restarts, second.restarts, second.pid) == (1, 0, pids[1])


async def kill_as_soon_as_it_serves(supervisor: Supervisor, times: int) -> None:
    child = supervisor.children[0]
    kills = 0

    def serves() -> bool:
        return child.state is State.RUNNING and child.restarts == kills

    while kills < times:
        await until(serves)
        child.kill()
        kills += 1
    await until(serves)


def waits(caplog: pytest.LogCaptureFixture) -> list[str]:
    """How long each restart waited, as it was logged."""
    messages = [record.message for record in caplog.records]
    return [text.rsplit(" in ", 1)[1] for text in messages if "restarting it in" in text]


async def test_restarts_wait_longer_each_time_up_to_a_limit(
    short_tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor_module, "LONGEST_BACKOFF_S", 0.4)

    async with supervised(short_tmp_path, [[child(OBEDIENT)]]) as supervisor:
        await kill_as_soon_as_it_serves(supervisor, 4)
    assert waits(caplog) == ["0.1 s", "0.2 s", "0.4 s", "0.4 s"]


async def test_a_healthy_child_is_restarted_at_once(
    short_tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor_module, "HEALTHY_AFTER_S", 0.0)

    async with supervised(short_tmp_path, [[child(OBEDIENT)]]) as supervisor:
        await kill_as_soon_as_it_serves(supervisor, 3)
    assert waits(caplog) == ["0.0 s", "0.0 s", "0.0 s"]


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


async def test_connections_are_no_longer_taken_when_it_stops(short_tmp_path: Path) -> None:
    running: list[Supervisor] = []
    states: list[State] = []

    def stop_listening() -> None:
        states.append(running[0].children[0].state)

    stages = [[child(OBEDIENT)]]
    async with supervised(short_tmp_path, stages, stop_listening=stop_listening) as supervisor:
        running.append(supervisor)
    assert states == [State.RUNNING]  # before the workers close their own


async def test_a_child_that_cannot_boot_ends_it_all(short_tmp_path: Path) -> None:
    stages = [[child(OBEDIENT)], [child(BOOT_FAILURE, 1)]]
    with pytest.raises(BootFailure, match="worker 1 could not start; its reason is above"):
        async with supervised(short_tmp_path, stages):
            pass


async def test_a_program_that_is_not_there_ends_it_all(short_tmp_path: Path) -> None:
    spec = ChildSpec(role="store", index=0, argv=["/no/such/server"])
    with pytest.raises(BootFailure, match="/no/such/server cannot be run: No such file"):
        async with supervised(short_tmp_path, [[spec]]):
            pass


async def test_a_boot_failure_quotes_the_childs_own_log(short_tmp_path: Path) -> None:
    spec = child("import sys; sys.exit(1)", role="store", last_words=lambda: "disk full")
    with pytest.raises(BootFailure, match="store exited with code 1: disk full"):
        async with supervised(short_tmp_path, [[spec]]):
            pass


async def test_a_boot_failure_at_a_restart_is_retried(short_tmp_path: Path) -> None:
    marker = short_tmp_path / "broken"
    code = f"import os, sys\nif os.path.exists({str(marker)!r}): sys.exit(3)\n" + OBEDIENT

    async with supervised(short_tmp_path, [[child(code)]]) as supervisor:
        worker = supervisor.children[0]
        marker.touch()
        worker.signal(signal.SIGKILL)
        await until(lambda: worker.restarts >= 2)
        marker.unlink()
        await until(lambda: worker.state is State.RUNNING)


async def test_a_child_deaf_to_sigterm_is_killed_in_time(
    short_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "STOP_S", 0.5)
    async with supervised(short_tmp_path, [[child(DEAF)]]) as supervisor:
        pid = supervisor.children[0].pid
        assert pid
    assert is_gone(pid)


async def test_a_second_sigterm_does_not_wait_for_a_deaf_child(short_tmp_path: Path) -> None:
    begun = time.monotonic()
    async with supervised(short_tmp_path, [[child(DEAF)]]) as supervisor:
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: supervisor.children[0].state is State.STOPPING)
        # Leaving sends the second one.
    assert time.monotonic() - begun < supervisor_module.STOP_S


async def test_sigterm_while_starting_gives_up_starting(short_tmp_path: Path) -> None:
    spec = child("import sys; sys.stdin.read()")  # never ready
    supervisor = Supervisor(
        [[spec]],
        port=1,
        control_path=short_tmp_path / "control.sock",
        store={},
        on_ready=lambda: pytest.fail("it cannot be ready"),
    )
    running = asyncio.ensure_future(supervisor.run())
    await until(lambda: supervisor.children[0].pid is not None)
    pid = supervisor.children[0].pid
    assert pid is not None
    os.kill(os.getpid(), signal.SIGTERM)
    await running
    assert is_gone(pid)


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


async def test_sighup_replaces_only_what_is_told_something_new(short_tmp_path: Path) -> None:
    before = [[child(OBEDIENT), child(OBEDIENT, 1)]]
    after = [[child(OBEDIENT), child(OBEDIENT, 1, stdin_line=b'{"log_level": "debug"}')]]

    async with supervised(short_tmp_path, before, reload=lambda: after) as supervisor:
        first, second = supervisor.children
        pids = first.pid, second.pid
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: second.state is State.RUNNING and second.pid != pids[1])
        assert first.pid == pids[0]


async def test_sighup_with_a_broken_configuration_changes_nothing(
    short_tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def reload() -> StartStages:
        raise ValueError("unknown key 'prot'")

    async with supervised(short_tmp_path, [[child(OBEDIENT)]], reload=reload) as supervisor:
        pid = supervisor.children[0].pid
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: "is not reloaded: unknown key 'prot'" in caplog.text)
        assert supervisor.children[0].pid == pid


async def test_the_control_socket_is_removed_and_a_stale_one_is_no_obstacle(
    short_tmp_path: Path,
) -> None:
    path = short_tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
    assert path.exists()
    async with supervised(short_tmp_path, [[child(OBEDIENT)]]):
        pass
    assert not path.exists()
