"""Every process of the archiver is killed at the worst moment: no record is lost or archived twice.

Records are produced all the while. A kill between the commits of the two tables finds one ahead of
the other, files that no table knows, and offsets that are not committed to the broker.
"""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from moldau.ops.pipeline.lake.schemas import BATCHES, RECORDS
from moldau.ops.pipeline.lake.tables import Lake
from tests.support.brokers.running import Broker
from tests.support.pipeline.lakes import check_lake
from tests.support.pipeline.process import Archiving
from tests.support.pipeline.spark import CODECS, create_topic, produce

PARTITIONS = 3


@pytest.fixture
def archiving(moldau: Broker, tmp_path: Path) -> Iterator[Archiving]:
    made = Archiving(moldau, "killed", tmp_path)
    yield made
    made.end()


class Producing(threading.Thread):
    """Rounds of 100 records per partition, until `end` is called."""

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self._broker = broker
        self._stop_asked = threading.Event()
        self.count = 0
        self.fault: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._stop_asked.wait(0.2):
                indexes = range(self.count, self.count + 100)
                places = [(p, i) for i in indexes for p in range(PARTITIONS)]
                codec = CODECS[self.count // 100 % len(CODECS)]
                produce(self._broker.bootstrap, "killed", places, codec)
                self.count += 100
        except BaseException as fault:
            self.fault = fault
            raise

    def end(self) -> int:
        """Returns the number of records in each partition."""
        self._stop_asked.set()
        self.join()
        assert self.fault is None
        return self.count


@pytest.mark.timeout(1200)
def test_killed_four_times_and_every_record_once(moldau: Broker, archiving: Archiving) -> None:
    create_topic(moldau.bootstrap, "killed", PARTITIONS)
    producing = Producing(moldau)
    producing.start()
    try:
        archiving.start("--continuous", "--interval", "0.1", "--max-records", "600")
        archiving.wait_commits(2)

        # Two Python workers of Spark at work: their tasks run again.
        before = archiving.version(RECORDS)
        workers = archiving.children("python")
        assert workers
        for worker in workers[-2:]:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()
        archiving.wait_commits(before + 2)

        # The driver, between the commits of the two tables.
        archiving.wait(
            lambda: archiving.version(BATCHES) > archiving.version(RECORDS), "one table is ahead"
        )
        archiving.kill()

        # Java itself; the driver ends and names the cause.
        archiving.start("--continuous", "--interval", "0.1", "--max-records", "600")
        archiving.wait_commits(archiving.version(RECORDS) + 1)
        (java,) = archiving.children("java")[:1]
        java.kill()
        archiving.wait_done(code=1)
        assert "moldau: Spark's Java process has ended" in archiving.output()
    finally:
        count = producing.end()

    # To the end; SIGTERM then ends it without a complaint.
    archiving.start("--continuous", "--interval", "0.1")
    archiving.wait(lambda: count_rows(archiving.lake) >= count * PARTITIONS, "all is archived")
    assert archiving.process is not None
    archiving.process.terminate()
    archiving.wait_done()
    assert archiving.output().splitlines()[-1].startswith("archived ")
    check_lake(archiving.lake, "killed", [count] * PARTITIONS)


def count_rows(lake: Lake) -> int:
    count: int = lake.open(RECORDS).to_pyarrow_dataset().count_rows()
    return count
