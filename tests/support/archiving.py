"""A running `moldau pipeline archive` for tests that kill parts of it."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from ops.pipeline.lake.schemas import RECORDS
from ops.pipeline.lake.tables import Lake
from tests.support.running import MOLDAU, Broker, clean_environment, wait_until

PATIENCE_S = 120.0


class Archiving:
    """`moldau pipeline archive` of one topic, which may be started several times."""

    def __init__(self, broker: Broker, topic: str, directory: Path, **env: str) -> None:
        self._broker = broker
        self._topic = topic
        self.lake = Lake(directory / "lake")
        self._log = directory / "log"
        self._env = {
            **clean_environment(),
            "PYSPARK_SUBMIT_ARGS": "--driver-memory 700m pyspark-shell",
            **env,
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *more: str, master: str = "local[2,4]") -> None:
        words = ["pipeline", "archive", "--lake", str(self.lake.path), "--topic", self._topic]
        words += ["--bootstrap", self._broker.bootstrap, "--master", master, *more]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*MOLDAU, *words], env=self._env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def wait_done(self) -> None:
        assert self.process is not None
        assert self.process.wait(PATIENCE_S) == 0, self.output()

    def output(self) -> str:
        return self._log.read_text(errors="replace")[-6000:]

    def children(self, name: str, argument: str = "") -> list[psutil.Process]:
        """Its child processes by name and argument."""
        assert self.process is not None
        found = []
        for one in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if name in one.name() and argument in " ".join(one.cmdline()):
                    found.append(one)
        return found

    def kill(self) -> None:
        """Kill the driver with SIGKILL; its Java process ends by itself."""
        assert self.process is not None
        java = self.children("java")
        self.process.kill()
        self.process.wait()
        psutil.wait_procs(java, timeout=PATIENCE_S)

    def end(self) -> None:
        """Kill what is still running."""
        if self.process is not None and self.process.poll() is None:
            self.kill()

    def version(self, table: str) -> int:
        """The last commit of a table."""
        log = self.lake.table_path(table) / "_delta_log"
        return max((int(one.stem) for one in log.glob("*.json")), default=-1)

    def wait_commits(self, version: int) -> None:
        self.wait(lambda: self.version(RECORDS) >= version, f"commit {version}")

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Poll often: the moment is short."""

        def holds() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, f"it ended: {self.output()}"
            return condition()

        wait_until(holds, PATIENCE_S, f"{what}\n{self.output()}")
