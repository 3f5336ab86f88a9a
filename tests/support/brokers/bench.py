"""`moldau bench` in this process: short runs, for what they check and the form of the results."""

from __future__ import annotations

import json
from typing import Any

import pytest

from moldau.ops.cli import main

SHORT = ("--seconds", "0.2", "--repeat", "1")


class Bench:
    """Runs the command; starting an interpreter for each run would take longer than the run."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def run(self, *words: str) -> tuple[int, str, str]:
        """Exit code, standard output, standard error."""
        self._capsys.readouterr()
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
