"""The supervisor with children of a few lines: order, restarts, back-off, signals, the end."""

import asyncio
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from moldau.broker.process import BootFailure
from moldau.ops.serve import supervisor as supervisor_module
from moldau.ops.serve.child_spec import ChildSpec
from moldau.ops.serve.children import State
from moldau.ops.serve.supervisor import StartStages, Supervisor
from tests.unit.ops.serve.supervised import (
    BOOT_FAILURE,
    DEAF,
    OBEDIENT,
    child,
    is_gone,
    supervised,
    until,
)

# As the supervisor itself runs, not as workers do.
pytestmark = pytest.mark.stdlib_loop


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


async def test_a_second_sigterm_does_not_wait_for_a_deaf_child(
    short_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "STOP_S", 90)
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


async def test_sighup_replaces_only_children_whose_settings_changed(short_tmp_path: Path) -> None:
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
