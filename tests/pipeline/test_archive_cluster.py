"""The archiver on a Spark cluster: a master and two workers, each with an executor of its own.

Nothing may depend on a shared process. One of the executors is killed while it works.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from tests.support.brokers.running import Broker
from tests.support.pipeline.lakes import check_lake
from tests.support.pipeline.process import Archiving
from tests.support.pipeline.spark import create_topic, fill

EXECUTOR = "CoarseGrainedExecutorBackend"


@pytest.fixture
def archiving(moldau: Broker, tmp_path: Path) -> Iterator[Archiving]:
    # Workers write below SPARK_HOME, which is the installed package by default.
    home = tmp_path / "spark"
    home.mkdir()
    for one in Path(pyspark.__file__).parent.iterdir():
        (home / one.name).symlink_to(one)
    made = Archiving(moldau, "clustered", tmp_path, SPARK_HOME=str(home))
    yield made
    made.end()


@pytest.mark.timeout(1200)
def test_two_workers_and_one_of_them_killed(moldau: Broker, archiving: Archiving) -> None:
    create_topic(moldau.bootstrap, "clustered", 6)
    fill(moldau.bootstrap, "clustered", 6, 2000)
    archiving.start("--once", "--max-records", "2500", master="local-cluster[2,1,1024]")
    archiving.wait_commits(1)
    executors = archiving.children("java", EXECUTOR)
    assert len(executors) == 2
    os.kill(executors[0].pid, signal.SIGKILL)
    archiving.wait_done()
    check_lake(archiving.lake, "clustered", [2000] * 6)
