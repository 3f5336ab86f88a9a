"""Group members as processes of their own: real clients that can be stopped and killed."""

import subprocess
import sys
import time
from pathlib import Path

import confluent_kafka

from tests.support.brokers.running import ROOT, Broker, clean_environment

SESSION_MS = 2_000
QUICK = {"group.initial.rebalance.delay.ms": 100, "group.min.session.timeout.ms": 1_000}
PATIENCE_S = 60.0


class Crew:
    """Member processes; whatever happens, none is left."""

    def __init__(self, directory: Path, broker: Broker, group: str, topic: str) -> None:
        self._directory, self._group, self._topic = directory, group, topic
        self._broker = broker
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, client: str) -> subprocess.Popen[bytes]:
        number = len(self.processes)
        words = [client, self._broker.bootstrap, self._group, self._topic, str(SESSION_MS)]
        with (
            (self._directory / f"out-{number}").open("wb") as out,
            (self._directory / f"err-{number}").open("wb") as err,
        ):
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.clients.member_process", *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=ROOT,
                env=clean_environment(),
            )
        self.processes.append(process)
        return process

    def read_by(self, process: subprocess.Popen[bytes]) -> list[tuple[int, int]]:
        """What a member has read, as (partition, offset)."""
        text = (self._directory / f"out-{self.processes.index(process)}").read_bytes()
        whole = text[: text.rfind(b"\n") + 1]
        pairs = (line.split() for line in whole.splitlines())
        return [(int(partition), int(offset)) for partition, offset in pairs]

    def read(self) -> set[tuple[int, int]]:
        return {pair for process in self.processes for pair in self.read_by(process)}

    def errors_of(self, process: subprocess.Popen[bytes]) -> str:
        return (self._directory / f"err-{self.processes.index(process)}").read_text()

    def errors(self) -> str:
        return "".join(path.read_text() for path in sorted(self._directory.glob("err-*")))

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()


def produce(broker: Broker, topic: str, count: int, partitions: int, seconds: float) -> None:
    """That many small records, evenly over the partitions and about that time."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.bootstrap, "linger.ms": 20, "enable.idempotence": True}
    )
    began = time.monotonic()
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=number % partitions)
        if number % 1000 == 0:
            producer.poll(0)
            time.sleep(max(began + seconds * number / count - time.monotonic(), 0))
    assert producer.flush(PATIENCE_S) == 0
