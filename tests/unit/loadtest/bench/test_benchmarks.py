"""The table of benchmarks: help, README and modules agree with it."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from moldau.loadtest.bench.benchmarks import BENCHMARKS
from moldau.loadtest.bench.command import description
from moldau.loadtest.bench.wire import codec_cases, measure, peak_allocated

README = Path(__file__).parents[4] / "loadtest" / "README.md"


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_is_a_module_of_its_name(name: str) -> None:
    assert import_module(f"moldau.loadtest.bench.{name}").BENCHMARK is BENCHMARKS[name]


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


def test_the_codecs_do_not_copy_record_batches() -> None:
    large = [case for case in codec_cases() if case.frame_bytes > 16_000]
    assert [case.name for case in large] == [
        "Produce v9, 16 KB: request decoded",
        "Fetch v12, 1 MB of records: response encoded",
    ]
    for case in large:
        case.run()  # compiles the codec
        assert 0 < peak_allocated(case) < case.frame_bytes / 4


def test_a_codec_is_timed() -> None:
    row = measure(next(codec_cases()), 0.001)
    assert row["run"] == "Heartbeat v4: request decoded, response encoded"
    assert row["us"] > 0
