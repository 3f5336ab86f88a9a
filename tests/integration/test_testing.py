"""`moldau.testing`, as an application's tests use it."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer
from kafka import KafkaProducer

from moldau.broker.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from moldau.ops.client import TopicPartition
from moldau.ops.operations.groups import find_group
from moldau.testing import Broker, BrokerFailed, Record, broker
from moldau.testing.topics import Topics
from tests.support.brokers.running import run_moldau, wait_until
from tests.support.stores.redis_server import RedisServer


@pytest.fixture(scope="module")
def kafka() -> Iterator[Broker]:
    with broker(workers=2) as started:
        yield started


@pytest.fixture(scope="module")
def secure() -> Iterator[Broker]:
    with broker(secure=True) as started:
        yield started


def test_records_without_a_client_library(kafka: Broker) -> None:
    topic = kafka.topic(partitions=3, config={"max.message.bytes": 5000})
    assert kafka.produce(topic, b"a", "b", None) == [0, 1, 2]
    (offset,) = kafka.produce(topic, "c", key="k", headers={"x": "y", "empty": None})
    assert kafka.consume(topic, 4) == [b"a", b"b", None, b"c"]
    (*_, last) = kafka.records(topic, 4)
    assert (last.topic, last.offset, last.key) == (topic, offset, b"k")
    assert last.headers == [("x", b"y"), ("empty", None)]
    assert kafka.produce(topic, b"z", partition=2)[0] >= 0
    kafka.wait_for(topic, 5)
    with pytest.raises(TimeoutError, match=f"topic {topic} has 5 of 6 records"):
        kafka.consume(topic, 6, timeout=0.2)
    with pytest.raises(TimeoutError, match="has 5 of 6 records"):
        kafka.wait_for(topic, 6, timeout=0.2)
    with pytest.raises(Exception, match="MESSAGE_TOO_LARGE"):
        kafka.produce(topic, bytes(6000))


def test_groups_commit_what_they_got(kafka: Broker) -> None:
    topic = kafka.topic(partitions=2)
    for partition in range(2):
        kafka.produce(topic, *(f"{partition}{number}" for number in range(5)), partition=partition)
    assert kafka.group_lag("readers", topic) == 10
    first = kafka.consume(topic, 3, group="readers")
    assert kafka.group_lag("readers", topic) == 7
    rest = kafka.consume(topic, 7, group="readers")
    assert sorted(str(value) for value in first + rest) == sorted(
        str(f"{partition}{number}".encode()) for partition in range(2) for number in range(5)
    )
    assert kafka.group_lag("readers", topic) == 0
    with pytest.raises(TimeoutError, match="group readers got 0 of 1 records"):
        kafka.consume(topic, 1, group="readers", timeout=0.2)


class Interrupted(Topics):
    """The members of its group are removed after they have read for the first time."""

    was_interrupted = False

    def _read(
        self, place: TopicPartition, offset: int, positions: dict[TopicPartition, int]
    ) -> list[Record]:
        got = super()._read(place, offset, positions)
        if got and not self.was_interrupted:
            self.was_interrupted = True
            group = find_group(self.cluster, "ended")
            assert group is not None
            members = [MemberIdentity(each.member_id) for each in group.members]
            request = LeaveGroupRequest("ended", members=members)
            self.cluster.call_coordinator("ended", request, attrgetter("error_code"))
        return got


def test_what_a_group_could_not_commit_is_read_again(kafka: Broker) -> None:
    topic = kafka.topic()
    kafka.produce(topic, *"abcd")
    topics = Interrupted(kafka._cluster)
    try:
        got = topics.records_of_group(topic, 3, "ended", 60)
    finally:
        topics.close()
    assert topics.was_interrupted
    assert [each.value for each in got] == [b"a", b"b", b"c"]
    assert kafka.group_lag("ended", topic) == 1
    assert kafka.consume(topic, 1, group="ended") == [b"d"]


def test_clients_work_with_its_settings(kafka: Broker, secure: Broker) -> None:
    for started in (kafka, secure):
        topic = started.topic()
        producer = Producer(started.client_config(**{"linger.ms": 0}))
        producer.produce(topic, b"librdkafka")
        assert producer.flush(60) == 0
        python = KafkaProducer(**started.kafka_python_config())
        python.send(topic, b"kafka-python").get(60)
        python.close()
        asyncio.run(_send_with_aiokafka(started, topic))
        assert started.consume(topic, 3) == [b"librdkafka", b"kafka-python", b"aiokafka"]
        assert started.java_config()["bootstrap.servers"] == started.bootstrap
    settings = secure.java_config()
    assert settings["security.protocol"] == "SASL_SSL"
    assert "ScramLoginModule" in settings["sasl.jaas.config"]


async def _send_with_aiokafka(started: Broker, topic: str) -> None:
    producer = AIOKafkaProducer(**started.aiokafka_config())
    await producer.start()
    try:
        await producer.send_and_wait(topic, b"aiokafka")
    finally:
        await producer.stop()


def test_faults(kafka: Broker) -> None:
    topic = kafka.topic()
    kafka.produce(topic, "before")
    old = kafka.status()["processes"]
    kafka.kill_worker(1)
    kafka.kill_router()
    kafka.kill_store()
    pids = {entry["pid"] for entry in kafka.status()["processes"]}
    assert len(pids - {entry["pid"] for entry in old}) == 3
    kafka.produce(topic, "between")
    with kafka.pause("store"):
        producer = Producer(kafka.client_config())
        producer.produce(topic, b"while it stood still")
        assert producer.flush(0.5) == 1
    assert producer.flush(60) == 0
    kafka.restart()
    kafka.produce(topic, "after a stop")
    kafka.restart(kill=True)
    kafka.produce(topic, "after a kill")
    assert kafka.consume(topic, 5) == [
        b"before", b"between", b"while it stood still", b"after a stop", b"after a kill",
    ]  # fmt: skip


def test_data_can_be_kept(tmp_path: Path) -> None:
    with broker(data_dir=tmp_path / "data", config={"num.partitions": 7}, keep=True) as first:
        producer = Producer(first.client_config())
        producer.produce("made", b"kept", partition=6)
        assert producer.flush(60) == 0
    assert first.directory.exists()
    first.remove()
    assert not first.directory.exists()
    with broker(data_dir=tmp_path / "data") as second:
        assert second.consume("made", 1) == [b"kept"]


def test_nothing_is_left_of_a_killed_process(tmp_path: Path) -> None:
    program = (
        "import os, sys, time\n"
        "from moldau.testing import broker\n"
        "with broker() as kafka:\n"
        "    print(kafka.directory, *(one['pid'] for one in kafka.status()['processes']),"
        " flush=True)\n"
        "    time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        directory, *pids = process.stdout.readline().split()
        members = [psutil.Process(int(pid)) for pid in pids if pid != "None"]
        assert len(members) >= 4
        os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not any(map(_is_running, members)), 30, "its processes end with it")
    subprocess.run(["rm", "-r", directory], check=True)


def _is_running(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_why_it_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BrokerFailed, match="partitionz"), broker(config={"num.partitionz": 1}):
        pass
    with (
        pytest.raises(BrokerFailed, match="redis://"),
        broker(redis="redis://127.0.0.1:1"),
    ):
        pass
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(BrokerFailed, match=r"broker\(redis="), broker():
        pass


def test_a_store_of_ones_own(server: RedisServer) -> None:
    with broker(redis=server.url) as kafka:
        topic = kafka.topic()
        kafka.produce(topic, b"a")
        kafka.kill_worker()
        assert kafka.consume(topic, 1, group="readers") == [b"a"]
        with pytest.raises(BrokerFailed, match="not this broker's own"):
            kafka.kill_store()
        with pytest.raises(BrokerFailed, match="there is no store 0"), kafka.pause("store"):
            pass
        kafka.restart(kill=True)
        assert kafka.group_lag("readers", topic) == 0


def test_exit_with_parent_needs_a_pipe() -> None:
    done = run_moldau("serve", "--exit-with-parent", "--port", "1")
    assert done.returncode == 3
    assert "--exit-with-parent needs a pipe as standard input" in done.stderr


def test_fixtures_of_pytest(tmp_path: Path) -> None:
    (tmp_path / "test_application.py").write_text(
        "import pytest\n"
        "\n"
        "@pytest.fixture(scope='session')\n"
        "def moldau_config():\n"
        "    return {'num.partitions': 5}\n"
        "\n"
        "@pytest.mark.parametrize('number', range(4))\n"
        "def test_orders(moldau, number):\n"
        "    topic = moldau.topic(partitions=3)\n"
        "    moldau.produce(topic, b'a', b'b')\n"
        "    assert moldau.consume(topic, 2) == [b'a', b'b']\n"
        "\n"
        "def test_redelivery(moldau_function, moldau):\n"
        "    assert moldau_function.bootstrap != moldau.bootstrap\n"
        "    moldau_function.kill_worker()\n"
        "    moldau_function.produce('made', b'a')\n"
        "\n"
        "def test_logins(moldau_secure):\n"
        "    assert moldau_secure.client_config()['security.protocol'] == 'SASL_SSL'\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--moldau-log", "-rP", "."]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed" in done.stdout
    assert "moldau: the log of 127.0.0.1:" in done.stdout
