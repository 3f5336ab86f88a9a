"""compact, sql, replay and report: errors before Spark is started, and a query run to its end."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from moldau.ops.pipeline.replay.command import timestamp_ms
from tests.support.brokers.running import MOLDAU, clean_environment
from tests.support.pipeline.lake_rows import add_rows, make_lake, row_of

Pipeline = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize(
    "words",
    [
        ("compact",),
        ("sql", "select 1"),
        ("replay", "--topic", "a", "--to", "b"),
        ("report", "--html", "page.html"),
    ],
)
def test_a_lake_that_is_not_there(
    pipeline: Pipeline, tmp_path: Path, words: tuple[str, ...]
) -> None:
    done = pipeline(words[0], "--lake", str(tmp_path / "none"), *words[1:])
    assert done.returncode == 1
    assert "there is no table" in done.stderr
    assert "`moldau pipeline archive` creates it" in done.stderr


def test_no_broker_and_a_page_that_cannot_be_written(pipeline: Pipeline, tmp_path: Path) -> None:
    lake = str(make_lake(tmp_path / "lake").path)
    words = ("--topic", "a", "--to", "b", "--bootstrap", "127.0.0.1:1")
    assert "no broker answers" in pipeline("replay", "--lake", lake, *words).stderr
    done = pipeline("report", "--lake", lake, "--html", str(tmp_path / "no" / "page.html"))
    assert done.returncode == 1
    assert "give --html a file in a directory that exists" in done.stderr


def test_wrong_usage(pipeline: Pipeline) -> None:
    for words in (
        ("replay", "--topic", "a", "--to", "b", "--from-offset", "-1"),
        ("replay", "--topic", "a", "--to", "b", "--from-time", "yesterday"),
        ("replay", "--topic", "a", "--to", "b", "--from-time", "0", "--from-offset", "0"),
        ("sql",),
        ("sql", "--format", "xml", "select 1"),
        ("compact", "--retention-hours", "-3"),
    ):
        assert pipeline(words[0], "--lake", "x", *words[1:]).returncode == 2, words


def test_times() -> None:
    assert timestamp_ms("1750000000123") == 1_750_000_000_123
    assert timestamp_ms("2025-06-15T15:06:40Z") == 1_750_000_000_000
    assert timestamp_ms("2025-06-15T15:06:40") == 1_750_000_000_000
    assert timestamp_ms("2025-06-15T17:06:40.5+02:00") == 1_750_000_000_500


def test_a_query_from_the_command_line(tmp_path: Path) -> None:
    lake = make_lake(tmp_path / "lake")
    add_rows(lake, "orders", [row_of(0, i) for i in range(3)])
    query = "select offset, timestamp from records;"
    words = ["pipeline", "sql", "--lake", str(lake.path), "--master", "local[1]"]
    done = subprocess.run(
        [*MOLDAU, *words, "--format", "json", query],
        env={**clean_environment(), "PYSPARK_SUBMIT_ARGS": "--driver-memory 700m pyspark-shell"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"offset": at, "timestamp": f"2025-06-15T15:06:40.00{at}"} for at in range(3)
    ]
