"""Fixtures of the pipeline: one Spark session for all tests; a lake and a command for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import TYPE_CHECKING

import pytest

from moldau.ops import cli
from moldau.ops.pipeline.lake.tables import Lake
from tests.support.pipeline.lake_rows import make_lake
from tests.support.pipeline.spark import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


HERE = Path(__file__).parent
# The first test waits for Java to start, which takes minutes on a busy machine. A test that is
# interrupted in the middle of a call to Java leaves the session out of step, and all that follow
# fail: it must not happen to one that is only slow.
TIMEOUT_S = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Starting one takes longer than most tests with it. Tests leave it running."""
    with spark_session() as session:
        yield session


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return make_lake(tmp_path / "lake")


@pytest.fixture
def pipeline(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., CompletedProcess[str]]:
    """Run `moldau pipeline …` in this process: what it prints before it would start Spark.

    A process of its own would import Spark, Arrow and Delta again each time.
    """

    def run(*words: str, **env: str) -> CompletedProcess[str]:
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        code: object
        try:
            code = cli.main(["pipeline", *words])
        except SystemExit as ended:  # by argparse
            code = ended.code
        return CompletedProcess(words, int(str(code)), *capsys.readouterr())

    return run
