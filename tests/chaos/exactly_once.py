"""An application that must do everything exactly once, what happens to it, and the proof.

    with Application(directory, broker.bootstrap) as application:
        feed = Feed(broker)
        Chaos(broker, application, seed).run(seconds=15)
        application.finish(broker, feed)              # the proof

Two competing instances (`eos_process`) read numbers from one topic and write each of them to
another, in transactions. They die, and so does what they talk to.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import confluent_kafka

from tests.chaos.eos_process import SESSION_MS
from tests.support.brokers.running import ROOT, Broker, clean_environment, wait_until
from tests.support.proofs.committed import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    consume_committed,
    latest,
    read_transactions,
)
from tests.support.proofs.hammer import worker_ports
from tests.support.raw.calls import create_topic
from tests.support.raw.client import RawClient
from tests.support.raw.group import RawMember, coordinator_port, fetch_offsets
from tests.support.stores.lossy import StorePair

PARTITIONS = 6
INPUT, OUTPUT, GROUP = "numbers", "same-numbers", "application"
INSTANCES = 2
DRAIN_S = 60.0
SETTINGS = {"group.initial.rebalance.delay.ms": 100, "group.min.session.timeout.ms": 1_000}


class Application:
    """Its instances; whatever happens, none is left."""

    def __init__(self, directory: Path, bootstrap: str) -> None:
        self._directory = directory
        self._bootstrap = bootstrap
        self._running: list[subprocess.Popen[bytes] | None] = [None] * INSTANCES
        self.kills = 0

    def __enter__(self) -> Self:
        for index in range(INSTANCES):
            self.start(index)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            if process is not None:
                process.kill()
                process.wait()

    def start(self, index: int) -> None:
        words = [self._bootstrap, GROUP, INPUT, OUTPUT, f"{GROUP}-{index}"]
        with (
            (self._directory / f"out-{index}").open("ab") as out,
            (self._directory / f"err-{index}").open("ab") as err,
        ):
            self._running[index] = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.eos_process", *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=ROOT,
                env=clean_environment(),
            )

    def kill(self, index: int) -> None:
        """-9, and start it again."""
        process = self._running[index]
        assert process is not None
        process.kill()
        process.wait()
        self.kills += 1
        self.start(index)

    def pause(self, index: int, seconds: float) -> None:
        """It knows nothing of it, and goes on where it was."""
        process = self._running[index]
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        process.send_signal(signal.SIGCONT)

    def transactions(self) -> int:
        """That instances know to be committed."""
        files = self._directory.glob("out-*")
        return sum(path.read_bytes().count(b"\n") for path in files)

    def errors(self) -> str:
        return "".join(
            f"--- {path.name}\n{path.read_text()}" for path in sorted(self._directory.glob("err-*"))
        )

    # --- the end ---

    def finish(self, broker: Broker, feed: Feed) -> int:
        """Once all of the input is committed: every number is in the output once. How many."""
        numbers = feed.finish()
        try:
            self._drain(broker, feed.ends)
        finally:
            for process in self._running:
                if process is not None:
                    process.terminate()
        for process in self._running:
            assert process is not None
            self._await_end(process)
        ports = worker_ports(broker)
        self._prove_input(ports, numbers)
        outputs = [self._prove_partition(ports, number) for number in range(PARTITIONS)]
        assert consume_committed(broker.bootstrap, OUTPUT, PARTITIONS) == outputs
        counts = Counter(value for values in outputs for value in values)
        expected = {b"%d" % number for number in range(numbers)}
        missing = sorted(expected - counts.keys(), key=int)
        twice = sorted((value for value, count in counts.items() if count > 1), key=int)
        assert not missing, f"{len(missing)} missing: {missing[:9]}\n{self.errors()[-5000:]}"
        assert not twice, f"{len(twice)} more than once: {twice[:9]}\n{self.errors()[-5000:]}"
        assert counts.keys() == expected, "something that never was committed in the input"
        return numbers

    def _await_end(self, process: subprocess.Popen[bytes]) -> None:
        """A defect of the instance shows in its exit code. One that hangs in a call of its client
        has done all it had to."""
        try:
            code = process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            return
        assert code == 0, self.errors()

    def _drain(self, broker: Broker, ends: dict[int, int]) -> None:
        """Wait until the group has committed the whole input and nothing is open in the output."""

        def is_drained() -> bool:
            try:
                with RawMember(coordinator_port(broker, GROUP), GROUP, timeout=10) as raw:
                    found = fetch_offsets(raw, GROUP, {INPUT: list(range(PARTITIONS))})
                with RawClient(worker_ports(broker)[0], timeout=10) as client:
                    return all(
                        found[INPUT, number] == ends[number]
                        and latest(client, OUTPUT, number, READ_COMMITTED)
                        == latest(client, OUTPUT, number, READ_UNCOMMITTED)
                        for number in range(PARTITIONS)
                    )
            except (OSError, AssertionError, KeyError):
                return False  # not now

        try:
            wait_until(is_drained, DRAIN_S, "all is committed")
        except AssertionError as late:
            raise AssertionError(
                f"{late}\n{self.errors()[-5000:]}\n{broker.log()[-5000:]}"
            ) from None

    def _prove_input(self, ports: Sequence[int], numbers: int) -> None:
        """Else what is wrong in the output is not the application's doing."""
        found = [read_transactions(ports[0], INPUT, number) for number in range(PARTITIONS)]
        written = [value for read in found for value in read.committed]
        counts = Counter(written)
        twice = [value for value, count in counts.items() if count > 1]
        assert not twice, f"{len(twice)} more than once in the input: {twice[:9]}"
        assert len(written) == numbers, f"{len(written)} of {numbers} in the input"
        for number, read in enumerate(found):
            wrong = _out_of_order(read.committed)
            assert not wrong, f"partition {number} of the input is out of order at {wrong[:5]}"

    def _prove_partition(self, ports: Sequence[int], number: int) -> list[bytes]:
        """What is committed there, in order; every worker agrees."""
        first, *others = [read_transactions(port, OUTPUT, number) for port in ports]
        assert not first.open, f"partition {number}: {first.open}"
        first.check_markers()
        for other in others:
            assert other.committed == first.committed
        wrong = _out_of_order(first.committed)
        twice = len(first.committed) - len(set(first.committed))
        assert not wrong, (
            f"partition {number} is out of order at {wrong[:5]}, {twice} are there more than once\n"
            f"{self.errors()[-5000:]}"
        )
        return first.committed


def _out_of_order(values: Sequence[bytes]) -> list[tuple[int, int]]:
    return [pair for pair in pairwise(map(int, values)) if pair[0] >= pair[1]]


class Feed(threading.Thread):
    """Writes the numbers, some of them in transactions; what is aborted must not come through."""

    def __init__(self, broker: Broker, per_second: int = 400) -> None:
        super().__init__(name="feed", daemon=True)
        self._servers = broker.bootstrap
        self._per_second = per_second
        self._is_enough = threading.Event()
        self._failed: list[str] = []
        self._written = 0
        self._unanswered = 0
        self.ends: dict[int, int] = {}  # offsets behind the last record, by partition
        with RawClient(worker_ports(broker)[0]) as client:
            for topic in (INPUT, OUTPUT):
                create_topic(client, topic, partitions=PARTITIONS)
        self._aborted_first()
        self.start()

    def _aborted_first(self) -> None:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": self._servers, "transactional.id": "feed"}
        )
        producer.init_transactions(DRAIN_S)
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(INPUT, b"-1", partition=partition)
        producer.flush(DRAIN_S)
        producer.abort_transaction(DRAIN_S)

    def run(self) -> None:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self._servers,
                "enable.idempotence": True,
                "linger.ms": 5,
                "reconnect.backoff.max.ms": 300,
                "retry.backoff.max.ms": 300,
                "log_level": 2,
            }
        )
        began = time.monotonic()
        while not self._is_enough.is_set():
            elapsed = time.monotonic() - began
            while self._written < elapsed * self._per_second:
                value = b"%d" % self._written
                producer.produce(
                    INPUT,
                    value,
                    partition=self._written % PARTITIONS,
                    on_delivery=self._delivered,
                )
                self._written += 1
            producer.poll(0.02)
        self._unanswered = producer.flush(DRAIN_S)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self._failed.append(str(error))
            return
        partition, offset = message.partition(), message.offset()
        if offset is not None:  # else it was there already, and librdkafka does not know where
            self.ends[partition] = max(self.ends.get(partition, 0), offset + 1)

    def finish(self) -> int:
        """How many numbers there are. The last ones come after all that has happened: a log that
        ends with a gap has no end that consumers would reach."""
        time.sleep(0.5)
        self._is_enough.set()
        self.join(2 * DRAIN_S)
        assert not self.is_alive()
        assert not self._unanswered
        assert not self._failed, f"{len(self._failed)} not written: {self._failed[:3]}"
        return self._written


class Chaos:
    """Something happens every moment; `what` says what may happen."""

    def __init__(
        self,
        broker: Broker,
        application: Application,
        what: Sequence[str],
        seed: int,
        pair: StorePair | None = None,
    ) -> None:
        self._broker = broker
        self._pair = pair  # of stores, if there is one
        self._application = application
        self._what = what
        self._random = random.Random(seed)
        self.done: Counter[str] = Counter()
        self._acts: dict[str, Callable[[], None]] = {
            "instance": self._kill_instance,
            "pause": self._pause_instance,
            "worker": lambda: self._kill("worker"),
            "router": lambda: self._kill("router"),
            "store": lambda: self._kill("store"),
            "stop": self._stop_worker,
            "master": self._kill_master,
        }

    def run(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        order: list[str] = []
        while time.monotonic() < until:
            time.sleep(self._random.uniform(0.2, 1.5))
            if not order:  # each of them before any comes again
                order = self._random.sample(list(self._what), len(self._what))
            act = order.pop()
            self._acts[act]()
            self.done[act] += 1

    def _kill_instance(self) -> None:
        self._application.kill(self._random.randrange(INSTANCES))

    def _pause_instance(self) -> None:
        """Pause one for longer than its session lasts: the other one takes its partitions over."""
        index = self._random.randrange(INSTANCES)
        self._application.pause(index, self._random.uniform(1.05, 1.6) * SESSION_MS / 1000)

    def _kill(self, role: str) -> None:
        self._signal(role, signal.SIGKILL)

    def _stop_worker(self) -> None:
        """Longer than other workers wait for it, shorter than the supervisor does."""
        pid = self._signal("worker", signal.SIGSTOP)
        time.sleep(self._random.uniform(1.8, 2.6))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def _signal(self, role: str, number: signal.Signals) -> int:
        """Signal one of the processes of a role that run just now."""
        while True:
            self._broker.remember_members()
            pids = self._broker.pids(role)
            if pids:
                pid = self._random.choice(pids)
                with contextlib.suppress(ProcessLookupError):  # it has just died
                    os.kill(pid, number)
                    return pid
            time.sleep(0.05)

    def _kill_master(self) -> None:
        """Its replica takes over."""
        assert self._pair is not None
        self._pair.kill_master()
        self._pair.promote()
        self._pair.rejoin()
