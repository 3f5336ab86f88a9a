"""Two brokers and a mirror between them: what tests of `moldau mirror` share."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

from moldau.broker.wire.batch import LEADER_EPOCH_AT, read_header, split_batches
from moldau.ops.client import EARLIEST, LATEST, Cluster, TopicPartition, parse_addresses
from moldau.ops.client.batches import batches_of
from moldau.ops.operations.groups import committed_offsets
from tests.support.brokers.moldau_cli import Cli
from tests.support.brokers.running import MOLDAU, ROOT, Broker, wait_until
from tests.support.raw.client import RawClient

PATIENCE_S = 60.0


@contextlib.contextmanager
def cluster_of(broker: Broker) -> Iterator[Cluster]:
    with Cluster(parse_addresses(broker.bootstrap)) as cluster:
        yield cluster


def partitions_of(broker: Broker, topic: str) -> int:
    with cluster_of(broker) as cluster:
        return len(cluster.topics([topic])[topic].partitions)


def bounds(broker: Broker, topic: str) -> list[tuple[int, int]]:
    """Log start and end of each partition."""
    with cluster_of(broker) as cluster:
        count = len(cluster.topics([topic])[topic].partitions)
        places = [TopicPartition(topic, number) for number in range(count)]
        starts = cluster.list_offsets(dict.fromkeys(places, EARLIEST))
        ends = cluster.list_offsets(dict.fromkeys(places, LATEST))
        return [(starts[place], ends[place]) for place in places]


def batches(broker: Broker, topic: str, isolation: int = 0) -> list[list[bytes]]:
    """The batches of each partition as a consumer gets them, but for their leader epoch.

    With isolation 1 those of aborted transactions are left out, as consumers do.
    """
    found: list[list[bytes]] = []
    with RawClient(broker.port) as client:
        for number, (start, end) in enumerate(bounds(broker, topic)):
            of_partition: list[bytes] = []
            offset = start
            while offset < end:
                answer = client.fetch(
                    topic, offset, partition=number, isolation_level=isolation, max_wait_ms=100
                )
                assert answer.error_code == 0
                if not answer.records:
                    break  # what is left is an open transaction's
                for header, data, aborted in batches_of(answer, isolation):
                    offset = header.next_offset
                    if not aborted:
                        copy = bytearray(data)
                        copy[LEADER_EPOCH_AT : LEADER_EPOCH_AT + 4] = bytes(4)
                        of_partition.append(bytes(copy))
            found.append(of_partition)
    return found


def offsets_in(broker: Broker, topic: str) -> list[list[int]]:
    """The base offsets of what is stored, in its order."""
    return [
        [read_header(batch).base_offset for blob in of for batch in split_batches(blob)]
        for of in batches(broker, topic)
    ]


def assert_equal(source: Broker, target: Broker, *topics: str) -> None:
    for topic in topics:
        for isolation in (0, 1):
            assert batches(target, topic, isolation) == batches(source, topic, isolation)
        assert bounds(target, topic) == bounds(source, topic)


def committed(broker: Broker, group: str) -> dict[TopicPartition, int]:
    with cluster_of(broker) as cluster:
        return {place: one.offset for place, one in committed_offsets(cluster, group).items()}


def words(source: Broker, topics: str, *more: str) -> Sequence[str]:
    return ("mirror", "--from", source.bootstrap, "--topics", topics, *more)


def mirror_once(source: Broker, target: Broker, topics: str, *more: str) -> dict[str, Any]:
    """The report of a mirror that ended as soon as everything was there."""
    done = Cli(target)(*words(source, topics, "--once", "--json", *more))
    assert done.returncode == 0, done.stderr
    return last_report(done.stdout)


def cut_over(source: Broker, target: Broker, topics: str, *more: str) -> dict[str, Any]:
    done = Cli(target)(*words(source, topics, "--cut-over", "--json", *more))
    assert done.returncode == 0, done.stderr
    return last_report(done.stdout)


def last_report(output: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(output.splitlines()[-1])
    return report


class RunningMirror:
    """A mirror that goes on until it is stopped."""

    def __init__(self, source: Broker, target: Broker, topics: str, *more: str) -> None:
        self._process = subprocess.Popen(
            [*MOLDAU, *words(source, topics, "--json", *more)],
            cwd=ROOT,
            env=Cli(target).env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def report(self) -> dict[str, Any]:
        """The next one."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._process.communicate()[1]
        report: dict[str, Any] = json.loads(line)
        return report

    def wait(self, what: str, condition: Any) -> None:
        wait_until(lambda: condition(self.report()), PATIENCE_S, what)

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def stop(self) -> tuple[int, str]:
        """The exit code, and what it complained about."""
        self._process.terminate()
        return self.ended()

    def ended(self) -> tuple[int, str]:
        _, complaints = self._process.communicate(timeout=PATIENCE_S)
        return self._process.returncode, complaints


@contextlib.contextmanager
def running_mirror(
    source: Broker, target: Broker, topics: str, *more: str
) -> Iterator[RunningMirror]:
    mirror = RunningMirror(source, target, topics, *more)
    try:
        yield mirror
    finally:
        mirror.kill()
