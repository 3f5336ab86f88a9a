"""`from moldau import MoldauSource`: imported, on executors, and for mypy."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, assert_type

import pytest

from moldau.ops.pipeline.lake.tables import Lake
from moldau.ops.pipeline.source.data_source import MoldauSource
from tests.support.brokers.running import ROOT, Broker
from tests.support.pipeline.public_module import check_public_module
from tests.support.pipeline.spark import create_topic, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_from_the_tree(tmp_path: Path) -> None:
    """tests/integration/test_wheel.py has the same for a wheel."""
    check_public_module(sys.executable, ROOT, tmp_path)


def test_spark_reads_a_topic_with_it(spark: "SparkSession", moldau: Broker) -> None:
    import moldau as public

    create_topic(moldau.bootstrap, "public", 1)
    produce(moldau.bootstrap, "public", [(0, i) for i in range(7)])
    spark.dataSource.register(public.MoldauSource)
    reader = spark.read.format("moldau").option("kafka.bootstrap.servers", moldau.bootstrap)
    assert reader.option("subscribe", "public").load().count() == 7


def test_its_names_have_their_types() -> None:
    import moldau

    assert_type(moldau.MoldauSource, type[MoldauSource])
    assert moldau.MoldauSource is MoldauSource
    assert moldau.Lake is Lake
    assert set(moldau.__all__) <= set(dir(moldau))
    assert all(callable(getattr(moldau, name)) for name in moldau.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Sink'"):
        moldau.Sink  # type: ignore[attr-defined]  # noqa: B018
