"""A running `moldau pipeline …` for tests that kill it or parts of it."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from moldau.ops.pipeline.lake.schemas import RECORDS
from moldau.ops.pipeline.lake.tables import Lake
from tests.support.brokers.running import MOLDAU, Broker, clean_environment, wait_until

PATIENCE_S = 300.0  # Java takes a minute to start on a busy machine
LOCAL = "local[2,4]"


class PipelineProcess:
    """An action of `moldau pipeline` on a lake, which may be started several times."""

    def __init__(self, broker: Broker, lake: Lake, *words: str, **env: str) -> None:
        self._words = [words[0], "--lake", str(lake.path), "--bootstrap", broker.bootstrap]
        self._words += words[1:]
        self.lake = lake
        lake.path.parent.mkdir(exist_ok=True)
        self._log = lake.path.parent / "log"
        self._env = {
            **clean_environment(),
            "PYSPARK_SUBMIT_ARGS": "--driver-memory 700m pyspark-shell",
            **env,
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *more: str, master: str = LOCAL) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*MOLDAU, "pipeline", *self._words, "--master", master, *more],
                env=self._env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def output(self) -> str:
        return self._log.read_text(errors="replace")[-6000:]

    def wait_done(self, code: int = 0) -> None:
        assert self.process is not None
        assert self.process.wait(PATIENCE_S) == code, self.output()

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Poll often: the moment may be short."""

        def holds() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, f"it ended: {self.output()}"
            return condition()

        wait_until(holds, PATIENCE_S, what)

    # --- killing ---

    def children(self, name: str, argument: str = "") -> list[psutil.Process]:
        """Its child processes by name and argument."""
        assert self.process is not None
        found = []
        for one in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if name in one.name() and argument in " ".join(one.cmdline()):
                    found.append(one)
        return found

    def kill(self, *, workers: bool = False) -> None:
        """Kill the driver with SIGKILL, and its Python workers too; Java ends by itself."""
        assert self.process is not None
        java, python = self.children("java"), self.children("python") if workers else []
        self.process.kill()
        self.process.wait()
        for worker in python:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()
        psutil.wait_procs([*java, *python], timeout=PATIENCE_S)

    def end(self) -> None:
        """Kill what is still running."""
        if self.process is not None and self.process.poll() is None:
            self.kill()


class Archiving(PipelineProcess):
    """`moldau pipeline archive` of one topic."""

    def __init__(self, broker: Broker, topic: str, directory: Path, **env: str) -> None:
        super().__init__(broker, Lake(directory / "lake"), "archive", "--topic", topic, **env)

    def version(self, table: str) -> int:
        """The last commit of a table."""
        log = self.lake.table_path(table) / "_delta_log"
        return max((int(one.stem) for one in log.glob("*.json")), default=-1)

    def wait_commits(self, version: int) -> None:
        self.wait(lambda: self.version(RECORDS) >= version, f"commit {version}")
