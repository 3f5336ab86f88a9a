"""Errors of tasks: Spark hands them back as text, users see the pipeline's own message."""

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from moldau.ops.client import ClientError
from moldau.ops.pipeline.errors import DataLoss, PipelineError, from_spark
from moldau.ops.pipeline.replay.producer import SequenceMismatch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGE = "partition a-0: no leader (LEADER_NOT_AVAILABLE); try again"


@pytest.mark.parametrize("kind", [ClientError, DataLoss, SequenceMismatch])
def test_the_message_of_a_task_is_found_whatever_module_its_class_is_in(
    spark: "SparkSession", kind: type[ClientError]
) -> None:
    def fail(_: int) -> None:
        raise kind(MESSAGE)

    with pytest.raises(PySparkException) as caught:
        spark.sparkContext.parallelize([1], 1).map(fail).collect()
    assert str(from_spark(caught.value)) == MESSAGE


def test_the_last_error_of_a_chain_counts() -> None:
    """What a task raises `from` another comes after it in the traceback."""
    text = (
        "Job aborted\nTraceback (most recent call last):\n  File x\n"
        "moldau.ops.client.errors.ClientError: no broker answers\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        "Traceback (most recent call last):\n  File y\n"
        "moldau.ops.pipeline.errors.PipelineError: run the archiver again\n\n\tat org.apache.spark"
    )
    assert str(from_spark(Exception(text))) == "run the archiver again"


def test_an_error_of_spark_itself_is_one_line() -> None:
    found = from_spark(Exception("Connection refused\nmore"), "where the lake ends")
    assert isinstance(found, PipelineError)
    assert str(found) == (
        "Spark gave up: Connection refused; run it again, it resumes where the lake ends"
    )
    quoted = from_spark(Exception("no column ops.pipeline.errors.DataLoss: x"))
    assert str(quoted).startswith("Spark gave up: no column ops.pipeline")
