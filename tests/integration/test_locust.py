"""Short load tests: every user class, every shape, several processes; and that a run can fail.

Only as a command: importing locust would patch the sockets and threads of all other tests.
"""

from __future__ import annotations

import json
import re
import secrets
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from moldau.broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from moldau.broker.wire.records import Record, build_batch
from moldau.loadtest.bench.harness.client import Client
from moldau.loadtest.users.client.stamped import Stamp, stamped_batch, stamped_value
from tests.support.brokers.running import ROOT, Broker, clean_environment, free_ports, wait_until
from tests.support.compat.grouping import quick_broker

ALL_USERS = {
    "AdminUser",
    "ColdReader",
    "CommittedReader",
    "GroupChurn",
    "GroupMember",
    "Producer",
    "TailReader",
    "TransactionalProducer",
}
PATIENCE_S = 60.0
Counts = dict[tuple[str, str], int]


@pytest.fixture(scope="module")
def moldau() -> Iterator[Broker]:
    yield from quick_broker()


class Run:
    """One run of locust.

    `-f loadtest`, as in the README, executes every module below it, which takes a second longer
    than the locustfile alone: one test does it.
    """

    def __init__(
        self, where: str, *words: str, file: str = "loadtest/locustfile.py", **environment: str
    ) -> None:
        self.output = ""
        self.topic = f"load-{secrets.token_hex(4)}"
        if "--topic" in words:
            self.topic = words[words.index("--topic") + 1]
        command = [sys.executable, "-m", "locust", "-f", file, "--host", where]
        command += ["--topic", self.topic, "--group", self.topic, "--equal-weights", *words]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**clean_environment(), **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def end(self) -> tuple[int, str]:
        """Exit code and output."""
        self.output, _ = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, self.output

    def close(self) -> None:
        """Kill a run that has not ended."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture
def locust() -> Iterator[Callable[..., Run]]:
    """`locust(address of the broker, *words, **environment)` starts a run."""
    started: list[Run] = []

    def start(where: str, *words: str, **environment: str) -> Run:
        started.append(Run(where, *words, **environment))
        return started[-1]

    yield start
    for run in started:
        run.close()


Locust = Callable[..., Run]


def headless(users: int, seconds: int) -> tuple[str, ...]:
    return "--headless", "-u", str(users), "-r", str(users), "-t", f"{seconds}s", "--only-summary"


def two_processes() -> tuple[str, ...]:
    """Options for two processes, with a port of their own so that runs do not meet."""
    port = str(free_ports(1))
    return "--processes", "2", "--master-bind-port", port, "--master-port", port


def succeeded(run: Run) -> Counts:
    """Requests by type (the user's class) and API, of a run in which none of them failed."""
    code, output = run.end()
    assert code == 0, output
    assert "Traceback" not in output, output
    table, _, _ = output.partition("Response time percentiles")
    rows = re.findall(r"^(\w+) +(\w.*?) +(\d+) +(\d+)\(", table, re.MULTILINE)
    assert rows, output
    assert all(failed == "0" for *_, failed in rows), output
    return {(kind, api): int(count) for kind, api, count, _ in rows}


def counted(
    start: Callable[[int], Run], seconds: int, is_complete: Callable[[Counts], bool]
) -> Counts:
    """Counts of a run, or of a longer one if the machine was too busy for all of it."""
    counts = succeeded(start(seconds))
    return counts if is_complete(counts) else succeeded(start(4 * seconds))


def users_in(counts: Counts) -> set[str]:
    return {kind for kind, _ in counts}


EVERY_API = {
    (kind, api)
    for kind, apis in {
        "Producer": {"Metadata", "InitProducerId", "Produce", "Fetch"},
        "TailReader": {"ListOffsets", "Fetch", "end to end"},
        "ColdReader": {"ListOffsets", "Fetch"},
        "GroupMember": {
            "FindCoordinator",
            "JoinGroup",
            "SyncGroup",
            "Heartbeat",
            "OffsetFetch",
            "Fetch",
            "OffsetCommit",
            "LeaveGroup",
        },
        "TransactionalProducer": {
            "FindCoordinator",
            "InitProducerId",
            "AddPartitionsToTxn",
            "Produce",
            "EndTxn",
            "Fetch",
        },
        "CommittedReader": {"ListOffsets", "Fetch", "end to end"},
        "GroupChurn": {"FindCoordinator", "JoinGroup", "SyncGroup", "LeaveGroup"},
        "AdminUser": {
            "Metadata",
            "DescribeCluster",
            "FindCoordinator",
            "ListGroups",
            "DescribeConfigs",
            "DescribeGroups",
            "ListOffsets",
            "ApiVersions",
        },
    }.items()
    for api in apis
}


def test_every_user_class_and_api_is_in_the_statistics(moldau: Broker, locust: Locust) -> None:
    words = ("--lifetime", "1", "--session-ms", "6000", "--groups", "2", "--heartbeat-ms", "300")

    def start(seconds: int) -> Run:
        return locust(moldau.bootstrap, *headless(20, seconds), *words, file="loadtest")

    counts = counted(start, 6, lambda counts: counts.keys() >= EVERY_API)
    assert counts.keys() >= EVERY_API
    assert users_in(counts) == ALL_USERS


def test_several_processes_and_a_report(moldau: Broker, locust: Locust, tmp_path: Path) -> None:
    report = tmp_path / "report.html"

    def start(seconds: int) -> Run:
        words = (*two_processes(), "--html", str(report))
        return locust(moldau.bootstrap, *headless(20, seconds), *words)

    counts = counted(start, 4, lambda counts: users_in(counts) == ALL_USERS)
    assert users_in(counts) == ALL_USERS
    assert counts["Producer", "Produce"] > 0
    assert counts["Producer", "Fetch"] > 0  # it reads back what it wrote when it stops
    assert "Produce" in report.read_text()


def test_codecs_and_acknowledgements(moldau: Broker, locust: Locust) -> None:
    kinds = [
        ("zstd", "all", "yes"),
        ("lz4", "1", "no"),
        ("gzip", "0", "no"),
        ("snappy", "all", "no"),
    ]
    runs = [
        locust(
            moldau.bootstrap,
            *headless(3, 5),
            *("--codec", codec, "--acks", acks, "--idempotent", idempotent, "--rate", "10"),
            *("Producer", "TailReader", "ColdReader"),
        )
        for codec, acks, idempotent in kinds
    ]
    for run, (_, _, idempotent) in zip(runs, kinds, strict=True):
        counts = succeeded(run)
        assert counts["Producer", "Produce"] > 0
        assert counts["ColdReader", "Fetch"] > 0
        assert (("Producer", "InitProducerId") in counts) == (idempotent == "yes")


def test_shapes(moldau: Broker, locust: Locust) -> None:
    by_argument = [
        locust(moldau.bootstrap, *headless(5, 2), "--shape", shape, "AdminUser")
        for shape in ("steady", "ramp", "spike")
    ]
    by_variable = locust(moldau.bootstrap, *headless(5, 2), "AdminUser", MOLDAU_LOAD_SHAPE="churn")
    for run in (*by_argument, by_variable):
        assert succeeded(run)["AdminUser", "Metadata"] > 0
        assert "Shape test stopping" in run.output


def _value(number: int) -> bytes:
    return stamped_value(Stamp(b"producer", number, 0), 100)


def _flipped() -> bytes:
    value = bytearray(_value(0))
    value[50] ^= 1
    return bytes(build_batch([Record(0, 0, None, bytes(value))], base_offset=0, last_offset=0))


def _batches(*firsts: int) -> list[bytes]:
    return [stamped_batch(b"producer", first, 2, 100, 0) for first in firsts]


BROKEN = {
    "lost": (_batches(0, 4), "records 2-3 are missing"),
    "duplicated or reordered": (_batches(0, 2, 0), "record 0 after 3"),
    "damaged": ([_flipped()], "record at 0 fails its checksum"),
}


def _broken_topic(broker: Broker, batches: list[bytes]) -> str:
    topic = f"broken-{secrets.token_hex(4)}"
    with Client(("127.0.0.1", broker.port)) as client:
        client.create_topic(topic, 1)
        for batch in batches:
            data = [TopicProduceData(topic, partition_data=[PartitionProduceData(0, batch)])]
            answer = client.call(ProduceRequest(None, -1, 30_000, data), 9)
            assert answer.responses[0].partition_responses[0].error_code == 0
    return topic


def _assert_failed(run: Run, what: str) -> None:
    code, output = run.end()
    assert code == 1, output
    failed = [line for line in output.splitlines() if line.startswith("CHECK FAILED")]
    assert failed, output
    assert failed[0].startswith(f"CHECK FAILED {what}: {run.topic}-0"), failed
    assert BROKEN[what][1] in failed[0]


IGNORING_ERRORS = ("--exit-code-on-error", "0", "--rate", "20")


def test_a_record_that_is_not_right_fails_the_run(moldau: Broker, locust: Locust) -> None:
    """Also when locust ignores errors; and the output names the record."""
    runs = {}
    for what, (batches, _) in BROKEN.items():
        topic = ("--topic", _broken_topic(moldau, batches))
        words = (*headless(1, 4), *IGNORING_ERRORS, *topic)
        runs[what] = locust(moldau.bootstrap, *words, "ColdReader")
    for what, run in runs.items():
        _assert_failed(run, what)


def test_a_record_that_is_not_right_for_one_of_several_processes(
    moldau: Broker, locust: Locust
) -> None:
    topic = ("--topic", _broken_topic(moldau, BROKEN["lost"][0]))
    words = (*headless(2, 6), *IGNORING_ERRORS, *topic, *two_processes())
    _assert_failed(locust(moldau.bootstrap, *words, "ColdReader"), "lost")


def test_a_killed_worker_costs_requests_and_no_record(
    start_moldau: Callable[..., Broker], locust: Locust
) -> None:
    broker = start_moldau(broker={"group.initial.rebalance.delay.ms": 100})
    words = (*headless(24, 10), "--rate", "20", "--groups", "1", "--exit-code-on-error", "0")
    run = locust(broker.bootstrap, *words)
    wait_until(lambda: "-group-0: " in broker.log(), 30, "members")
    for worker in (0, 1):
        broker.wait_restarted("worker", worker, broker.kill("worker", worker))
    code, output = run.end()
    assert code == 0, output
    assert "Connection" in output  # users noticed it
    for wrong in ("CHECK FAILED", "Traceback", "Malformed", "Bad file"):
        assert wrong not in output, output


def test_no_broker_fails_the_run(locust: Locust) -> None:
    run = locust("127.0.0.1:1", *headless(1, 2), "Producer")
    code, output = run.end()
    assert code == 1
    assert "127.0.0.1:1" in output


def test_the_web_interface(moldau: Broker, locust: Locust) -> None:
    port = free_ports(1)
    run = locust(moldau.bootstrap, "--web-host", "127.0.0.1", "--web-port", str(port))
    page = f"http://127.0.0.1:{port}"

    def get(path: str) -> str:
        with urllib.request.urlopen(f"{page}{path}", timeout=30) as answer:
            return str(answer.read().decode())

    def is_up() -> bool:
        try:
            return "moldau-load" in get("/") or run.topic in get("/")
        except OSError:
            return False

    def requests() -> set[str]:
        return {row["name"] for row in json.loads(get("/stats/requests"))["stats"]}

    try:
        wait_until(is_up, 30, "the page")
        form = urllib.parse.urlencode(
            {"user_count": 20, "spawn_rate": 20, "host": moldau.bootstrap, "topic": run.topic}
        )
        with urllib.request.urlopen(f"{page}/swarm", form.encode(), timeout=30) as answer:
            assert json.loads(answer.read())["success"]
        wait_until(lambda: {"Produce", "Fetch"} <= requests(), 30, "requests are counted")
    finally:
        run.process.terminate()
    code, output = run.end()
    assert code == 0, output
