"""Processes that are killed or stopped under load: what was acknowledged is there, once, in order.

Real processes and real signals. The proof is proof.py's; a real client's part in it is its delivery
reports.
"""

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

import pytest
import redis as redis_py
from confluent_kafka import KafkaError, Message, Producer

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.batch import split_batches
from moldau.broker.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.broker.wire.messages.init_producer_id import InitProducerIdRequest
from moldau.broker.wire.records import read_records
from tests.support.brokers.running import Broker, wait_until
from tests.support.proofs.hammer import HammerProcess, Orders, hammers, worker_ports
from tests.support.proofs.proof import Follower, prove, read_whole
from tests.support.raw.calls import create_topic
from tests.support.raw.client import DECODED_LIMIT, RawClient, make_batch, records_in

_names = (f"killed-{number}" for number in count())

StartMoldau = Callable[..., Broker]
PARTITIONS = 2
PATIENCE_S = 60.0


def new_topic(broker: Broker, partitions: int = PARTITIONS) -> str:
    topic = next(_names)
    with RawClient(worker_ports(broker)[0]) as client:
        create_topic(client, topic, partitions=partitions)
    return topic


def writers(seconds: float) -> list[Orders]:
    return [
        Orders("switching", switch_every=9, seconds=seconds, most_bytes=500),
        Orders("steady", seconds=seconds),
    ]


class RealProducer:
    """librdkafka with its idempotent producer, sending numbers to every partition in turn."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": 90_000,
                "reconnect.backoff.max.ms": 300,
                "retry.backoff.max.ms": 300,
                "log_level": 0,
            }
        )
        self.delivered: dict[int, list[tuple[int, int]]] = {}  # partition: (number, offset)
        self.failed: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for number in count():
            if self._stop.is_set():
                return
            try:
                self._producer.produce(
                    self._topic,
                    f"real:{number}|{'x' * (number % 700)}",
                    partition=number % PARTITIONS,
                    on_delivery=self._delivered,
                )
            except BufferError:
                self._producer.poll(0.05)
            self._producer.poll(0)
            if number % 20 == 0:
                time.sleep(0.01)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        value = message.value()
        assert isinstance(value, bytes)
        number = int(value.partition(b"|")[0].partition(b":")[2])
        if error is not None:
            self.failed.append(f"{number}: {error}")
            return
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        self.delivered.setdefault(partition, []).append((number, offset))

    def finish(self) -> None:
        self._stop.set()
        self._thread.join()
        left = self._producer.flush(90)
        assert left == 0, f"{left} messages were never delivered"
        assert not self.failed, self.failed[:5]

    def prove(self, port: int) -> int:
        """Every acknowledged message is there, once, in order, at its acknowledged offset."""
        total = 0
        for partition in range(PARTITIONS):
            blob = read_whole(port, self._topic, partition)
            found = [
                (int((record.value or b"").partition(b"|")[0].partition(b":")[2]), record.offset)
                for batch in split_batches(blob)
                for record in read_records(batch, DECODED_LIMIT)
            ]
            assert found == sorted(self.delivered.get(partition, []))
            total += len(found)
        return total


@contextmanager
def under_load(broker: Broker, topic: str, orders: list[Orders]) -> Iterator[list[HammerProcess]]:
    with hammers(orders, worker_ports(broker), topic, PARTITIONS) as processes:
        wait_until(lambda: written(broker, topic) > 20, 30, "the writers are writing")
        yield processes


def written(broker: Broker, topic: str) -> int:
    with RawClient(worker_ports(broker)[0]) as client:
        return client.fetch(topic, 0, max_bytes=1).high_watermark


def wait_for_more(broker: Broker, topic: str) -> None:
    end = written(broker, topic)
    wait_until(lambda: written(broker, topic) > end, 30, "they go on")


# --- workers ---


def test_4_1_a_retry_after_kill_9_of_the_worker_is_recognised(start_moldau: StartMoldau) -> None:
    broker = start_moldau(workers=2)
    topic = new_topic(broker, 1)
    first, second = worker_ports(broker)
    with RawClient(first) as client:
        producer = client.call(InitProducerIdRequest(transactional_id=None)).producer_id

        def batch(sequence: int) -> bytearray:
            values = [(None, b"%d" % (sequence + extra), 1) for extra in range(3)]
            return make_batch(
                values, producer_id=producer, producer_epoch=0, base_sequence=sequence
            )

        for sequence in range(0, 24, 3):
            assert client.produce(topic, batch(sequence)).base_offset == sequence
    pid = broker.kill("worker", 0)
    with RawClient(second) as client:  # meanwhile, through the other one
        assert client.produce(topic, batch(21)).base_offset == 21
        assert client.produce(topic, batch(24)).base_offset == 24
    broker.wait_restarted("worker", 0, pid)
    with RawClient(first) as client:
        for sequence in range(12, 27, 3):  # each of the last five
            answer = client.produce(topic, batch(sequence))
            assert (answer.error_code, answer.base_offset) == (0, sequence)
        assert client.produce(topic, batch(9)).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert client.produce(topic, batch(27)).base_offset == 27
        values = [record.value for record in records_in(client.fetch(topic, 0))]
        assert values == [b"%d" % number for number in range(30)]


def kill_workers(start_moldau: StartMoldau, seconds: float, seed: int) -> None:
    broker = start_moldau(workers=3, snapshot_entries=100)
    topic, real_topic = new_topic(broker), new_topic(broker)
    ports = worker_ports(broker)
    chance = random.Random(seed)
    followers = [Follower(port, topic, 0) for port in ports]
    real = RealProducer(broker, real_topic)
    with under_load(broker, topic, writers(seconds + PATIENCE_S)) as processes:
        stop_at = time.monotonic() + seconds
        kills = 0
        while time.monotonic() < stop_at or kills < 3:
            index = chance.randrange(3)
            broker.remember_members()
            pid = broker.processes("worker")[index]["pid"]
            if pid is None:  # still waits to be started again
                time.sleep(0.1)
                continue
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            kills += 1
            time.sleep(chance.uniform(0, 0.5))
            if chance.random() < 0.7:
                broker.wait_restarted("worker", index, pid)
                time.sleep(chance.uniform(0, 1))
        for process in processes:
            process.stop()
        reports = [process.report() for process in processes]
    real.finish()
    for index in range(3):
        broker.wait_restarted("worker", index, -1)
    assert prove(ports, topic, range(PARTITIONS), reports, followers) > 50
    assert real.prove(ports[0]) > 50


def test_kill_9_of_workers_at_random(start_moldau: StartMoldau) -> None:
    kill_workers(start_moldau, 10, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", [2, 3])
def test_kill_9_of_workers_at_random_for_a_minute(start_moldau: StartMoldau, seed: int) -> None:
    kill_workers(start_moldau, 60, seed)


def test_a_stopped_worker_that_wakes_up_leaves_no_gap(start_moldau: StartMoldau) -> None:
    """Its view is stale and its appends are late: the store refuses them."""
    broker = start_moldau(workers=3)
    topic = new_topic(broker)
    ports = worker_ports(broker)
    pids = broker.pids("worker")
    orders = [*writers(30), Orders("plain", idempotent=False, seconds=30)]
    with under_load(broker, topic, orders) as processes:
        for index in (0, 1, 2):
            broker.kill("worker", index, signal.SIGSTOP)
            before = stored_end(broker, topic)
            # Those that sit on the stopped worker wait; the others go on.
            time.sleep(1.2)
            broker.kill("worker", index, signal.SIGCONT)
            time.sleep(0.5)
            wait_until(lambda before=before: stored_end(broker, topic) > before, 30, "they go on")  # type: ignore[misc]
        for process in processes:
            process.stop()
        reports = [process.report() for process in processes]
    assert broker.pids("worker") == pids
    prove(ports, topic, range(PARTITIONS), reports)


def stored_end(broker: Broker, topic: str) -> int:
    """The end as the store knows it: a stopped worker cannot be asked."""
    with redis_py.from_url(broker.store_url) as client:
        streams = [client.xinfo_stream(f"moldau:{topic}:{number}") for number in range(PARTITIONS)]
    return sum(int(info["last-generated-id"].split(b"-")[0]) for info in streams)


# --- the store ---


def test_kill_9_of_the_embedded_store(start_moldau: StartMoldau) -> None:
    broker = start_moldau(workers=2)
    topic, real_topic = new_topic(broker), new_topic(broker)
    ports = worker_ports(broker)
    pids = broker.pids("worker")
    followers = [Follower(port, topic, 0) for port in ports]
    real = RealProducer(broker, real_topic)
    with under_load(broker, topic, writers(60)) as processes:
        for _ in range(3):
            pid = broker.kill("store")
            broker.wait_restarted("store", 0, pid)
            time.sleep(1)
        for process in processes:
            process.stop()
        reports = [process.report() for process in processes]
    real.finish()
    assert prove(ports, topic, range(PARTITIONS), reports, followers) > 50
    assert real.prove(ports[0]) > 50
    assert broker.pids("worker") == pids  # workers outlive their store


def test_a_store_that_hangs_for_a_while(start_moldau: StartMoldau) -> None:
    broker = start_moldau(workers=2)
    topic = new_topic(broker)
    ports = worker_ports(broker)
    pids = broker.pids("worker")
    followers = [Follower(port, topic, 0) for port in ports]
    orders = [*writers(60), Orders("plain", idempotent=False, seconds=60)]
    with under_load(broker, topic, orders) as processes:
        broker.kill("store", 0, signal.SIGSTOP)
        time.sleep(3)
        with RawClient(ports[0]) as client:  # a worker answers what needs no store
            assert client.fetch(topic, 0, max_bytes=1).error_code in (0, 56)
        broker.kill("store", 0, signal.SIGCONT)
        time.sleep(1)
        for process in processes:
            process.stop()
        reports = [process.report() for process in processes]
    prove(ports, topic, range(PARTITIONS), reports, followers)
    assert broker.pids("worker") == pids


def test_6_7_a_full_store_refuses_producers_with_an_error_they_retry(
    start_moldau: StartMoldau,
) -> None:
    broker = start_moldau(workers=2)
    topic, ballast = new_topic(broker), new_topic(broker, 1)
    ports = worker_ports(broker)
    with redis_py.from_url(broker.store_url) as store, RawClient(ports[0]) as client:
        for _ in range(20):
            client.produce(ballast, make_batch([(None, b"x" * 500_000, 1)]))
        with under_load(broker, topic, writers(60)) as processes:
            used = int(store.info("memory")["used_memory"])
            store.config_set("maxmemory", used)
            full = make_batch([(None, b"x" * 100_000, 1)])
            wait_until(
                lambda: client.produce(ballast, full).error_code == ErrorCode.KAFKA_STORAGE_ERROR,
                30,
                "the store is full",
            )
            before = client.fetch(topic, 0)
            assert before.error_code == 0
            assert before.records
            time.sleep(1)
            # Room by deleting a topic: that works in a full store too.
            deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name=ballast)])
            (answer,) = client.call(deletion).responses
            assert answer.error_code == 0, answer
            end = stored_end(broker, topic)
            wait_until(lambda: stored_end(broker, topic) > end, 30, "there is room again")
            store.config_set("maxmemory", used // 2)
            time.sleep(0.5)
            store.config_set("maxmemory", 0)
            for process in processes:
                process.stop()
            reports = [process.report() for process in processes]
    prove(ports, topic, range(PARTITIONS), reports)
    assert any(report.refusals.get("KAFKA_STORAGE_ERROR") for report in reports)
    assert "THE STORE IS FULL" in broker.log()


# --- everything ---


def test_kill_9_of_everything_and_a_new_start(start_moldau: StartMoldau) -> None:
    broker = start_moldau(workers=2)
    topic = new_topic(broker)
    ports = worker_ports(broker)
    with under_load(broker, topic, writers(60)) as processes:
        for _ in range(2):
            time.sleep(0.5)
            broker.kill("supervisor")
            broker.process.wait(30)
            broker.stop()  # by now only to see that its children went with it
            broker = start_moldau(workers=2, port=broker.port, data_dir=broker.data_dir)
            wait_for_more(broker, topic)
        for process in processes:
            process.stop()
        reports = [process.report() for process in processes]
    assert prove(ports, topic, range(PARTITIONS), reports) > 20


def test_sigterm_under_load_drains(start_moldau: StartMoldau) -> None:
    broker = start_moldau(workers=2)
    topic = new_topic(broker)
    ports = worker_ports(broker)
    orders = [*writers(60), Orders("plain", idempotent=False, seconds=60)]
    with under_load(broker, topic, orders) as processes:
        assert broker.stop() == 0
        again = start_moldau(workers=2, port=broker.port, data_dir=broker.data_dir)
        wait_for_more(again, topic)
        for process in processes:
            process.stop()
        reports = [process.report() for process in processes]
    assert prove(ports, topic, range(PARTITIONS), reports) > 20
    assert "Traceback" not in broker.log()
