"""The commands on a lake: what they say before Spark is started, and one that is run to its end."""

import json
import subprocess
from pathlib import Path

import pytest

from ops.pipeline.replay.command import timestamp_ms
from tests.support.lake_rows import add_rows, make_lake, row_of
from tests.support.running import MOLDAU, clean_environment


def moldau(*words: str) -> subprocess.CompletedProcess[str]:
    env = {**clean_environment(), "PYSPARK_SUBMIT_ARGS": "--driver-memory 700m pyspark-shell"}
    return subprocess.run(
        [*MOLDAU, "pipeline", *words],
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


@pytest.mark.parametrize(
    "words",
    [
        ("compact",),
        ("sql", "select 1"),
        ("replay", "--topic", "a", "--to", "b"),
        ("report", "--html", "page.html"),
    ],
)
def test_a_lake_that_is_not_there(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = moldau(words[0], "--lake", str(tmp_path / "none"), *words[1:])
    assert done.returncode == 1
    assert "there is no table" in done.stderr
    assert "`moldau pipeline archive` creates it" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_broker_and_no_place_for_the_page(tmp_path: Path) -> None:
    lake = str(make_lake(tmp_path / "lake").path)
    words = ("--topic", "a", "--to", "b", "--bootstrap", "127.0.0.1:1")
    assert "no broker answers" in moldau("replay", "--lake", lake, *words).stderr
    done = moldau("report", "--lake", lake, "--html", str(tmp_path / "no" / "page.html"))
    assert done.returncode == 1
    assert "give --html a file in a directory that exists" in done.stderr


def test_wrong_usage() -> None:
    for words in (
        ("replay", "--topic", "a", "--to", "b", "--from-offset", "-1"),
        ("replay", "--topic", "a", "--to", "b", "--from-time", "yesterday"),
        ("replay", "--topic", "a", "--to", "b", "--from-time", "0", "--from-offset", "0"),
        ("sql",),
        ("sql", "--format", "xml", "select 1"),
        ("compact", "--retention-hours", "-3"),
    ):
        assert moldau(words[0], "--lake", "x", *words[1:]).returncode == 2, words


def test_moments() -> None:
    assert timestamp_ms("1750000000123") == 1_750_000_000_123
    assert timestamp_ms("2025-06-15T15:06:40Z") == 1_750_000_000_000
    assert timestamp_ms("2025-06-15T15:06:40") == 1_750_000_000_000
    assert timestamp_ms("2025-06-15T17:06:40.5+02:00") == 1_750_000_000_500


def test_a_query_from_the_command_line(tmp_path: Path) -> None:
    lake = make_lake(tmp_path / "lake")
    add_rows(lake, "orders", [row_of(0, i) for i in range(3)])
    query = "select offset, timestamp from records order by offset;"
    done = moldau("sql", "--lake", str(lake.path), "--format", "json", query)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"offset": at, "timestamp": f"2025-06-15T15:06:40.00{at}"} for at in range(3)
    ]
