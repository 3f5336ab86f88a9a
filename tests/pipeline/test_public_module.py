"""`from moldau import MoldauSource`: in the tree, from a wheel, on executors and for mypy."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, assert_type

import pytest

from ops.pipeline.lake.tables import Lake
from ops.pipeline.source.data_source import MoldauSource
from tests.support.running import ROOT, Broker
from tests.support.spark import create_topic, produce
from tests.support.wheel import install_wheel, run_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Prints where things are, and the class as Spark sends it to executors.
PROGRAM = """
import json, sys
import moldau
heavy = [name for name in ("pyspark", "pyarrow", "numpy", "ops.pipeline") if name in sys.modules]
from moldau import MoldauSource
from pyspark import cloudpickle
print(json.dumps({
    "file": moldau.__file__,
    "class_file": sys.modules[MoldauSource.__module__].__file__,
    "heavy": heavy,
    "pickled": cloudpickle.dumps(MoldauSource).hex(),
}))
"""
UNPICKLE = """
import pickle, sys
source = pickle.loads(bytes.fromhex({pickled!r}))
print(source.name(), "moldau" in sys.modules)
"""


@pytest.mark.parametrize("installed", ["editable", "wheel"])
def test_programs_import_it_and_executors_unpickle_it(tmp_path: Path, installed: str) -> None:
    site = install_wheel(tmp_path) if installed == "wheel" else None
    found = json.loads(run_python(PROGRAM, tmp_path, site))
    assert Path(found["file"]).is_relative_to(site or ROOT)
    assert Path(found["class_file"]).is_relative_to(site or ROOT)
    assert found["heavy"] == []
    assert run_python(UNPICKLE.format(**found), tmp_path, site) == "moldau False"
    if site is not None:
        assert all((site / name / "py.typed").exists() for name in ("moldau", "ops", "broker"))
        assert not (site / "ops" / "public").exists()


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
