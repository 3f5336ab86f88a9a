"""One `moldau serve`: wait until it is ready, ask for its status, signal its processes, stop it.

`moldau.testing.broker` and the project's own tests start it, each in their way, with the directory
`run` as its runtime directory and the file `log` as its standard error.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

from moldau.ops.serve.control import NotRunningError, ask_status
from moldau.ops.serve.runtime import control_socket
from moldau.testing.ports import free_ports

T = TypeVar("T")

START_S = 60.0
LOOK_S = 0.02
PORT_ATTEMPTS = 10


class BrokerFailed(Exception):
    """The broker could not start or stop; the text has what it logged."""

    def __init__(self, text: str, log: str = "", exit_code: int | None = None) -> None:
        super().__init__(f"{text}:\n{log}" if log else text)
        self.log = log
        self.exit_code = exit_code


class Process(Protocol):
    """What is used of a `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...
    @property
    def stdin(self) -> IO[str] | None: ...
    @property
    def stdout(self) -> IO[str] | None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, number: int, /) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


class Serve:
    """A `moldau serve` that was just started, until it is stopped."""

    def __init__(self, process: Process, directory: Path, port: int) -> None:
        self.process = process
        self.directory = directory
        self.port = port
        self.bootstrap = f"127.0.0.1:{port}"
        self.ready_line = ""

    def await_ready(self) -> None:
        """Raises BrokerFailed."""
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], START_S)
        # The one line it prints; at its end, an empty one.
        self.ready_line = self.process.stdout.readline().strip() if readable else ""
        if self.ready_line:
            return
        if not readable:
            self.process.kill()
        code = self.process.wait(START_S)
        self.close()
        raise BrokerFailed("the broker did not start", self.log(), code)

    # --- looking ---

    def status(self) -> dict[str, Any]:
        """What `moldau status --json` prints, without starting it."""
        return ask_status(control_socket(self.directory / "run", self.port))

    def processes(self, role: str) -> list[dict[str, Any]]:
        return [entry for entry in self.status()["processes"] if entry["role"] == role]

    def pids(self, role: str) -> list[int]:
        """The processes of a role that are there just now, by index."""
        return [entry["pid"] for entry in self.processes(role) if entry["pid"] is not None]

    def pid_of(self, role: str, index: int) -> int:
        """Raises BrokerFailed."""
        entries = self.processes(role)
        if index >= len(entries) or entries[index]["pid"] is None:
            raise BrokerFailed(f"there is no {role} {index} at the moment")
        pid: int = entries[index]["pid"]
        return pid

    def log(self) -> str:
        """What its processes have logged."""
        with contextlib.suppress(FileNotFoundError):
            return (self.directory / "log").read_text(errors="replace")
        return ""

    # --- acting ---

    def kill(self, role: str, index: int = 0, number: signal.Signals = signal.SIGKILL) -> int:
        """Signal one process of a role; returns its pid."""
        pid = self.pid_of(role, index)
        os.kill(pid, number)
        return pid

    def kill_everything(self) -> None:
        """SIGKILL for every process, the supervisor first, so that it starts none again."""
        pids = [entry["pid"] for entry in self.status()["processes"] if entry["pid"] is not None]
        self.process.kill()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def wait_restarted(
        self, role: str, index: int, old_pid: int, patience_s: float = START_S
    ) -> None:
        """Wait until another process than `old_pid` serves in its place; raises TimeoutError."""

        def is_back() -> bool:
            entry = self.processes(role)[index]
            return entry["state"] == "running" and entry["pid"] not in (None, old_pid)

        wait_until(is_back, patience_s, lambda: f"{role} {index} was not replaced\n{self.log()}")

    def terminate(self, patience_s: float) -> int:
        """SIGTERM, and wait; returns the exit code. Raises BrokerFailed."""
        self.process.terminate()
        try:
            return self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise BrokerFailed("the broker did not stop", self.log()) from None
        finally:
            self.close()

    def close(self) -> None:
        """Close the pipes to a process that has ended."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def on_free_ports(count: int, log: Path, start: Callable[[int], T]) -> T:
    """Call `start` with the first of `count` free ports in a row; raises BrokerFailed."""
    for _ in range(PORT_ATTEMPTS):
        try:
            return start(free_ports(count))
        except BrokerFailed as failed:
            # Another process may have taken a port between the look and its use.
            if "is taken" not in failed.log:
                raise
            log.unlink()
    raise BrokerFailed(f"found no free ports in {PORT_ATTEMPTS} attempts")


def clean_environment() -> dict[str, str]:
    """The environment without anybody's MOLDAU_ settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith("MOLDAU_")}


def write_config(path: Path, settings: Mapping[str, object]) -> None:
    """Write Kafka's broker settings as a file for `--config`."""
    lines = [f"{json.dumps(key)} = {json.dumps(_text(value))}" for key, value in settings.items()]
    path.write_text("\n".join(["[broker]", *lines, ""]))


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def wait_until(condition: Callable[[], bool], timeout: float, describe: Callable[[], str]) -> None:
    """Poll until it holds; raises TimeoutError with the description."""
    deadline = time.monotonic() + timeout
    while True:
        with contextlib.suppress(NotRunningError):
            if condition():
                return
        if time.monotonic() > deadline:
            raise TimeoutError(f"{describe()} after {timeout:g} s")
        time.sleep(LOOK_S)
