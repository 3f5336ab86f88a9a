"""Everything of the archiver is killed at the worst moments; nothing is lost, nothing twice.

Records are produced all the while. Each kill waits for its moment: a commit of one table and not
yet of the other, files that no table knows yet, a commit that the broker was not told of.
"""

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from ops.pipeline.lake import BATCHES, RECORDS, Lake
from tests.support.lakes import check_lake
from tests.support.running import MOLDAU, Broker, clean_environment, wait_until
from tests.support.spark import CODECS, create_topic, produce

PARTITIONS = 3
PATIENCE_S = 120.0


class Archiving:
    """`moldau pipeline archive`, as often as it is started again."""

    def __init__(self, broker: Broker, lake: Lake, log: Path) -> None:
        self._broker = broker
        self.lake = lake
        self._log = log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *more: str) -> None:
        words = ["pipeline", "archive", "--lake", str(self.lake.path), "--topic", "killed"]
        words += ["--bootstrap", self._broker.bootstrap, "--master", "local[2,4]", *more]
        with self._log.open("ab") as log:
            env = {**clean_environment(), "PYSPARK_SUBMIT_ARGS": SUBMIT}
            self.process = subprocess.Popen([*MOLDAU, *words], env=env, stdout=log, stderr=log)

    def go_on(self) -> None:
        self.start("--continuous", "--interval", "0.1", "--max-records", "600")

    def finish(self) -> None:
        """Archive what is left, to the end."""
        self.start("--once")
        assert self.process is not None
        assert self.process.wait(PATIENCE_S) == 0, self.told()

    def told(self) -> str:
        return self._log.read_text(errors="replace")[-6000:]

    def children(self, name: str) -> list[psutil.Process]:
        assert self.process is not None
        found = []
        for one in psutil.Process(self.process.pid).children(recursive=True):
            try:
                if name in one.name():
                    found.append(one)
            except psutil.NoSuchProcess:
                continue
        return found

    def kill(self) -> None:
        """The driver, with -9; its Java notices by itself."""
        assert self.process is not None
        java = self.children("java")
        self.process.kill()
        self.process.wait()
        psutil.wait_procs(java, timeout=PATIENCE_S)

    def version(self, table: str) -> int:
        """The last commit of a table."""
        log = self.lake.table_path(table) / "_delta_log"
        return max((int(one.stem) for one in log.glob("*.json")), default=-1)

    def wait_commits(self, version: int) -> None:
        self.wait(lambda: self.version(RECORDS) >= version, f"commit {version}")

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Look often: the moment is short."""

        def holds() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, f"it ended: {self.told()}"
            return condition()

        wait_until(holds, PATIENCE_S, f"{what}\n{self.told()}")


SUBMIT = "--driver-memory 700m pyspark-shell"


@pytest.fixture
def archiving(moldau: Broker, tmp_path: Path) -> Iterator[Archiving]:
    made = Archiving(moldau, Lake(tmp_path / "lake"), tmp_path / "log")
    yield made
    if made.process is not None and made.process.poll() is None:
        made.kill()


class Producing(threading.Thread):
    """Rounds of 100 records per partition, until told to stop."""

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
        """Gives how many records each partition has."""
        self._stop_asked.set()
        self.join()
        assert self.fault is None
        return self.count


@pytest.mark.timeout(420)
def test_killed_six_times_and_every_record_once(moldau: Broker, archiving: Archiving) -> None:
    create_topic(moldau.bootstrap, "killed", PARTITIONS)
    producing = Producing(moldau)
    producing.start()
    try:
        archiving.go_on()
        archiving.wait_commits(2)

        # A worker of Spark, in the middle of its work: the task runs again.
        for _ in range(2):
            before = archiving.version(RECORDS)
            workers = archiving.children("python")
            assert workers
            for worker in workers[-2:]:
                os.kill(worker.pid, signal.SIGKILL)
            archiving.wait_commits(before + 2)

        # The driver, between the commits of the two tables.
        archiving.wait(
            lambda: archiving.version(BATCHES) > archiving.version(RECORDS), "one table is ahead"
        )
        archiving.kill()

        # The driver, when tasks have written files and nothing is committed.
        archiving.go_on()
        archiving.wait_commits(archiving.version(RECORDS) + 1)
        files = count_files(archiving.lake)
        archiving.wait(lambda: count_files(archiving.lake) > files, "a file was written")
        archiving.kill()

        # Java itself; the driver then ends with a reason.
        archiving.go_on()
        archiving.wait_commits(archiving.version(RECORDS) + 1)
        (java,) = archiving.children("java")[:1]
        os.kill(java.pid, signal.SIGKILL)
        assert archiving.process is not None
        assert archiving.process.wait(PATIENCE_S) == 1, archiving.told()
    finally:
        count = producing.end()
    archiving.finish()
    check_lake(archiving.lake, "killed", [count] * PARTITIONS)


def count_files(lake: Lake) -> int:
    return sum(1 for _ in lake.table_path(RECORDS).glob("topic=*/*/*.parquet"))
