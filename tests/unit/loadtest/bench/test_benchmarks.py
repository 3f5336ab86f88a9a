"""The table of benchmarks: help, README and modules agree with it."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from loadtest.bench.benchmarks import BENCHMARKS
from loadtest.bench.command import description
from loadtest.bench.wire import cases, measure

README = Path(__file__).parents[4] / "loadtest" / "README.md"


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_is_a_module_of_its_name(name: str) -> None:
    assert import_module(f"loadtest.bench.{name}").BENCHMARK is BENCHMARKS[name]


def test_the_help_lists_every_benchmark() -> None:
    lines = description().splitlines()
    for benchmark in BENCHMARKS.values():
        assert f"{benchmark.name:12} {benchmark.summary}" in lines


def test_the_readme_lists_every_benchmark() -> None:
    lines = README.read_text().splitlines()
    listed = [line for line in lines if line.startswith("| `moldau bench ") and "` |" in line]
    assert listed[: len(BENCHMARKS)] == [
        f"| `moldau bench {benchmark.name}` | {benchmark.summary} | {benchmark.baseline} |"
        for benchmark in BENCHMARKS.values()
    ]


def test_record_batches_pass_through_the_codecs_without_being_copied() -> None:
    rows = {row["run"]: row for row in (measure(case, 0.001) for case in cases())}
    for name in (
        "Produce v9, 16 KB: request decoded",
        "Fetch v12, 1 MB of records: response encoded",
    ):
        assert 0 < rows[name]["peak allocated bytes"] < rows[name]["frame bytes"] / 4
    assert all(row["us"] > 0 for row in rows.values())
