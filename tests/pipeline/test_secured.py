"""The source and the archiver with a broker that wants TLS and a login: Spark's own options."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from moldau.ops.client import read_client_settings
from moldau.ops.pipeline.archive.archiver import Archiver, ArchiveSettings
from moldau.ops.pipeline.lake.schemas import RECORDS
from moldau.ops.pipeline.lake.tables import Lake
from tests.support.brokers.moldau_cli import OperatorCli
from tests.support.brokers.running import Broker, running_broker
from tests.support.brokers.secured import java_settings
from tests.support.pipeline.lakes import rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with running_broker(workers=2, secure="true") as started:
        cli = OperatorCli(started)
        assert cli("topics", "create", "orders", "--partitions", "2").returncode == 0
        sent = cli("produce", "orders", typed="one\ntwo\nthree\n")
        assert sent.returncode == 0, sent.stderr
        yield started


def read(spark: SparkSession, broker: Broker, **changes: str) -> DataFrame:
    properties = {**read_client_settings(java_settings(broker)).properties, **changes}
    options = {f"kafka.{name}": value for name, value in properties.items()}
    options |= {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "orders"}
    return spark.read.format("moldau").options(**options).load()


def test_records_are_read_and_the_password_is_in_no_plan(
    spark: SparkSession, broker: Broker, capfd: pytest.CaptureFixture[str]
) -> None:
    frame = read(spark, broker)
    values = sorted(row.value for row in frame.select("value").collect())
    assert values == [b"one", b"three", b"two"]
    frame.explain(True)
    security = read_client_settings(java_settings(broker)).security
    assert security.sasl is not None
    shown = capfd.readouterr()
    assert "orders" in shown.out or "moldau" in shown.out
    assert security.sasl.password not in shown.out + shown.err


def test_a_wrong_password_is_named_and_the_password_is_not(
    spark: SparkSession, broker: Broker
) -> None:
    jaas = 'x.ScramLoginModule required username="admin" password="wrong-password";'
    with pytest.raises(Exception, match="does not accept user admin") as failed:
        read(spark, broker, **{"sasl.jaas.config": jaas}).collect()
    assert "wrong-password" not in str(failed.value)


def test_the_archiver_takes_a_file_of_settings(
    spark: SparkSession, broker: Broker, lake: Lake
) -> None:
    client = read_client_settings(java_settings(broker))
    settings = ArchiveSettings(
        broker.bootstrap, ("orders",), client_properties=client.properties
    )  # fmt: skip
    Archiver(spark, lake, settings).run(continuous=False)
    assert len(rows_of(lake, RECORDS, ["value"])) == 3
    secrets = [client.security.sasl.password] if client.security.sasl else []
    written = b"".join(path.read_bytes() for path in Path(lake.path).rglob("*") if path.is_file())
    assert not [secret for secret in secrets if secret.encode() in written]
