"""A running `moldau serve` for tests: real processes, free ports, directories of its own.

    broker = Broker.start(directory, workers=2, broker={"num.partitions": 3})
    broker.bootstrap, broker.store_url, broker.pids("worker"), broker.kill("worker", 1)
    broker.stop()

Use the fixtures `moldau` and `start_moldau` of conftest.py rather than this class by itself; a
module with a broker of its own makes a fixture of `running_broker`.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil  # type: ignore[import-untyped]

from moldau.ops.serve.control import NotRunningError
from moldau.testing import serve
from moldau.testing.ports import free_ports as free_ports  # tests import it from here
from moldau.testing.ports import is_port_free as is_port_free
from moldau.testing.serve import START_S, Process, Serve, on_free_ports, write_config
from tests.support.brokers import loaded

STOP_PATIENCE_S = 30.0
MOLDAU: tuple[str, ...] = (sys.executable, "-m", "moldau.ops.cli")
# The same command, but its workers only keep the contract with the supervisor.
MOLDAU_WITH_FAKE_WORKERS: tuple[str, ...] = (
    sys.executable,
    "-m",
    "tests.support.brokers.fake_serve",
)
ROOT = Path(__file__).parents[3]
# Whether processes of Moldau are forked from a loaded one (loaded.py).
_forks_processes = loaded.IS_AVAILABLE


def _where(port: int, workers: int, listeners: Sequence[str]) -> dict[str, object]:
    """The options that say where to listen: each listener has a block of ports."""
    if not listeners:
        return {"port": port}
    texts = [
        f"{name}://127.0.0.1:{port + place * (1 + workers)}" for place, name in enumerate(listeners)
    ]
    return {"listeners": ",".join(texts)}


class Broker(Serve):
    """One `moldau serve`, from ready to stopped."""

    def __init__(self, process: Process, directory: Path, port: int, data_dir: Path) -> None:
        super().__init__(process, directory, port)
        self.data_dir = data_dir
        self.bootstraps: dict[str, str] = {}  # by listener
        self._members: dict[int, psutil.Process] = {}

    @classmethod
    def start(
        cls,
        directory: Path,
        *,
        command: Sequence[str] = MOLDAU,
        port: int | None = None,
        data_dir: Path | None = None,
        workers: int = 2,
        env: Mapping[str, str] | None = None,
        broker: Mapping[str, object] | None = None,
        listeners: Sequence[str] = (),
        **options: object,
    ) -> "Broker":
        """Start one and wait until it is ready. Raises BrokerFailed.

        `broker` are Kafka's broker settings; `listeners` names of listeners on this machine; other
        options are those of `serve`, by field name. There is no spare process, which few tests use
        and whose start costs a third of a worker's: `spare_process=None` for the default. Without
        a `command`, the processes are forked from a loaded one, except within `fresh_processes`.
        """

        def start(chosen: int) -> Broker:
            flags = {
                "data-dir": data_dir or directory / "data",
                "workers": workers,
                "http": "off",
                "spare_process": "false",
                **_where(chosen, workers, listeners),
                **options,
            }
            words = [
                word
                for name, value in flags.items()
                if value is not None
                for word in (f"--{name.replace('_', '-')}", str(value))
            ]
            if broker:
                config = directory / f"broker-{chosen}.toml"
                write_config(config, broker)
                words += ["--config", str(config)]
            process = _launch(list(command), words, directory, env or {})
            started = cls(process, directory, chosen, data_dir or directory / "data")
            started.await_ready()
            for place, name in enumerate(listeners):
                started.bootstraps[name] = f"127.0.0.1:{chosen + place * (1 + workers)}"
            return started

        directory.mkdir(parents=True, exist_ok=True)
        if port is not None:
            return start(port)
        return on_free_ports(len(listeners or (1,)) * (1 + workers), directory / "log", start)

    def await_ready(self) -> None:
        super().await_ready()
        self.remember_members()

    # --- looking -------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def store_url(self) -> str:
        url: str = self.status()["store"]["url"]
        return url

    def remember_members(self) -> None:
        """Note every process that belongs to it now, for `leftovers`."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for member in psutil.Process(self.pid).children(recursive=True):
                self._members[member.pid] = member

    def leftovers(self) -> list[psutil.Process]:
        """Which of the processes noted are still running; a zombie is not."""
        return [member for member in self._members.values() if _is_running(member)]

    # --- acting --------------------------------------------------------------------------------

    def kill(self, role: str, index: int = 0, number: signal.Signals = signal.SIGKILL) -> int:
        """Signal one process of a role (`supervisor` too); returns its pid."""
        self.remember_members()
        if role != "supervisor":
            return super().kill(role, index, number)
        os.kill(self.pid, number)
        return self.pid

    def kill_everything(self) -> None:
        """SIGKILL for every process, the supervisor first, so that it starts none again."""
        super().kill_everything()
        wait_until(lambda: not self.leftovers(), 30, "nothing runs any more")

    def wait_restarted(
        self, role: str, index: int, old_pid: int, patience_s: float = START_S
    ) -> None:
        """Wait until another process than `old_pid` serves in its place."""
        super().wait_restarted(role, index, old_pid, patience_s)
        self.remember_members()

    def stop(self) -> int:
        """SIGTERM, and wait; returns the exit code. No process of it is left afterwards."""
        if self.process.poll() is None:
            with contextlib.suppress(NotRunningError, KeyError):
                self.remember_members()
        code = self.terminate(STOP_PATIENCE_S)
        wait_until(lambda: not self.leftovers(), 30, "its processes are gone")
        return code


def _launch(
    command: list[str], words: list[str], directory: Path, env: Mapping[str, str]
) -> Process:
    whole_env = {**clean_environment(), "MOLDAU_RUNTIME_DIR": str(directory / "run"), **env}
    with (directory / "log").open("ab") as log:
        if can_be_forked(command, env):
            return loaded.run_loaded(
                [*command[1:], "serve", *words], env=whole_env, stderr=log.fileno()
            )
        return subprocess.Popen(
            [*command, "serve", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=whole_env,
        )


@contextlib.contextmanager
def running_broker(*, unsaid: Sequence[str] = ("Traceback",), **options: Any) -> Iterator[Broker]:
    """A broker in a directory of its own, for as long as a fixture lasts.

    `options` are those of `Broker.start`. It has to end with exit code 0 when it is asked to, and
    its log must have nothing of `unsaid` in it.
    """
    directory = short_temp_dir()
    try:
        broker = Broker.start(directory, **options)
        try:
            yield broker
        finally:
            code, log = broker.stop(), broker.log()
    finally:
        remove_dir(directory)
    assert code == 0, log
    for text in unsaid:
        assert text not in log, log


def _is_running(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def run_moldau(
    *words: str,
    command: Sequence[str] = MOLDAU,
    env: Mapping[str, str] | None = None,
    timeout: float = 60,
) -> subprocess.CompletedProcess[str]:
    """Run `moldau …` to its end."""
    return subprocess.run(
        [*command, *words],
        env={**clean_environment(), **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def can_be_forked(command: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether it is the `moldau` command itself, and nothing is said to its interpreter."""
    is_plain = tuple(command) == MOLDAU and not any(name.startswith("PYTHON") for name in env)
    return _forks_processes and is_plain


@contextlib.contextmanager
def fresh_processes() -> Iterator[None]:
    """Meanwhile, every process of Moldau starts as it does for its users."""
    global _forks_processes
    before, _forks_processes = _forks_processes, False
    try:
        yield
    finally:
        _forks_processes = before


def clean_environment() -> dict[str, str]:
    """The environment without anybody's MOLDAU_ settings, and with this tree importable."""
    return {**serve.clean_environment(), "PYTHONPATH": str(ROOT)}


def wait_until(condition: Callable[[], bool], patience_s: float, what: str) -> None:
    """Poll until it holds; fail naming `what` when it does not in time."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.02)


def short_temp_dir() -> Path:
    """A new directory with a short name: pytest's are too long for unix sockets."""
    return Path(tempfile.mkdtemp(prefix="mo-", dir="/tmp"))


def remove_dir(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)


def as_json(text: str) -> Any:
    return msgspec.json.decode(text)
