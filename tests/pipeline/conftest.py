"""Fixtures of the pipeline: one Spark session for all tests of a process, an empty lake for each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ops.pipeline.lake.tables import Lake
from tests.support.lake_rows import make_lake
from tests.support.spark import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Starting one takes longer than most tests with it. Tests leave it running."""
    with spark_session() as session:
        yield session


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return make_lake(tmp_path / "lake")
