"""Runs `moldau bench` in this process, for what it checks and the form of its results.

The brokers that it starts are forked, as others of the tests are, and have no spare process.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import IO, Any
from unittest import mock

import pytest

from moldau.loadtest.bench.harness import target
from moldau.ops.cli import main
from tests.support.brokers.loaded import LoadedProcess, run_loaded
from tests.support.brokers.running import MOLDAU, can_be_forked, clean_environment

SHORT = ("--seconds", "0.2", "--repeat", "1")


def _start(
    words: Sequence[str], *, env: Mapping[str, str], stderr: IO[str], **options: Any
) -> subprocess.Popen[str] | LoadedProcess:
    """What a benchmark calls as `subprocess.Popen`."""
    assert tuple(words[: len(MOLDAU)]) == MOLDAU
    env = {**env, **clean_environment(), "MOLDAU_SPARE_PROCESS": "false"}
    if can_be_forked(MOLDAU, {}):
        return run_loaded(words[1:], env=env, stderr=stderr.fileno())
    return subprocess.Popen(words, env=env, stderr=stderr, **options)


_FORKING = SimpleNamespace(
    Popen=_start, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired
)


class Bench:
    """Runs the command; starting an interpreter for each run would take longer than the run."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def run(self, *words: str) -> tuple[int, str, str]:
        """Exit code, standard output, standard error."""
        self._capsys.readouterr()
        with mock.patch.object(target, "subprocess", _FORKING):
            code = main(["bench", *words])
        captured = self._capsys.readouterr()
        assert "Traceback" not in captured.err
        return code, captured.out, captured.err

    def report(self, *words: str) -> Any:
        code, out, err = self.run(*words, "--json")
        assert code == 0, err
        return json.loads(out)

    def rows(self, *words: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.report(*words)["rows"]
        return rows

    def by_run(self, *words: str) -> dict[str, dict[str, Any]]:
        return {row["run"]: row for row in self.rows(*words)}
