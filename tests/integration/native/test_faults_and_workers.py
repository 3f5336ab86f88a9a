"""Native topics with real brokers: other stores, several workers, faults, kcat."""

import shutil
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from confluent_kafka import KafkaException, Producer

from moldau.broker.wire.batch import TRANSACTIONAL
from moldau.broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from moldau.broker.wire.records import NO_HEADERS, Record, build_batch, read_records
from tests.support.brokers.native import Member, Native, offset_of
from tests.support.brokers.running import Broker, wait_until
from tests.support.compat.session import worker_ports
from tests.support.raw.client import RawClient
from tests.support.stores.redis_server import running_redis

Start = Callable[..., Broker]
QUICK = {"group.initial.rebalance.delay.ms": 0, "log.retention.check.interval.ms": 200}
KCAT = shutil.which("kcat") or shutil.which("kafkacat")
NAMED_FETCH, NAMED_PRODUCE = 12, 12  # the last versions that name topics


@pytest.fixture
def topic(moldau: Broker) -> Iterator[Native]:
    made = Native(moldau)
    yield made
    made.close()


def fetched(port: int, topic: Native, offset: int, size: int = 1 << 20) -> list[Record]:
    """What one worker answers, leader of the partition or not."""
    part = FetchPartition(0, fetch_offset=offset, partition_max_bytes=size)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=size,
        topics=[FetchTopic(topic.name, partitions=[part])],
    )
    with RawClient(port) as client:
        answer = client.call(request, NAMED_FETCH).responses[0].partitions[0]
    assert answer.error_code == 0
    records = []
    data = memoryview(bytes(answer.records or b""))
    while len(data):
        length = 12 + int.from_bytes(data[8:12], "big")
        records += read_records(data[:length], 1 << 30)
        data = data[length:]
    return records


def test_an_external_redis(start_moldau: Start, tmp_path: Path) -> None:
    """The oldest server there is support for, where it is installed."""
    with running_redis(tmp_path / "store") as server:
        topic = Native(start_moldau(workers=2, broker=QUICK, redis=server.url))
        topic.produce(*(b"%d" % number for number in range(100)))
        topic.add(*range(100, 200))
        with topic.member("g") as member:
            assert member.read(200) == [b"%d" % number for number in range(200)]
            assert topic.pending("g") == {member.member_id: 200}
            member.commit()
            topic.wait_for_pending("g", 0)
            topic.add(200)
            assert member.read(1) == [b"200"]
        topic.close()


class TestWorkers:
    def test_every_worker_gives_the_same_offsets(self, topic: Native) -> None:
        ports = worker_ports(topic.broker)
        pipe = topic.store.pipeline(transaction=True)
        for number in range(4000):
            pipe.xadd(topic.key(), {"value": number}, id=f"1700000000000-{number}")
        for number in range(4000, 4010):
            pipe.xadd(topic.key(), {"value": number}, id=f"1700000000001-{number - 4000}")
        pipe.execute()
        topic.add("last")

        found: list[tuple[int, bytes | None]] = []
        offset = 0
        for turn in range(200):  # a fetch may come to any worker
            records = fetched(ports[turn % 2], topic, offset, 8_000 if turn % 3 else 40_000)
            if not records:
                break
            found += [(record.offset, record.value) for record in records]
            offset = records[-1].offset + 1

        assert [value for _, value in found] == [b"%d" % n for n in range(4010)] + [b"last"]
        for at in (0, 1023, 1024, 2500, 3999, 4000, 4005, 4009, 4010):
            for port in ports:
                (first, *_) = fetched(port, topic, found[at][0])
                assert (first.offset, first.value) == found[at]

    def test_a_worker_killed_under_load(self, start_moldau: Start) -> None:
        broker = start_moldau(workers=2, broker=QUICK)
        topic = Native(broker)
        wanted = {b"r%d" % number for number in range(1500)} | {b"k%d" % n for n in range(1500)}
        producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
        failed: list[object] = []

        def write() -> None:
            for number in range(1500):
                topic.add(f"r{number}")
                producer.produce(
                    topic.name,
                    value=b"k%d" % number,
                    on_delivery=lambda error, _: failed.append(error) if error else None,
                )
                producer.poll(0)
                time.sleep(0.002)

        writer = threading.Thread(target=write)
        writer.start()
        seen: list[bytes] = []
        with topic.member("g") as member:
            killed = 0
            deadline = time.monotonic() + 90
            while len(set(seen)) < len(wanted):
                assert time.monotonic() < deadline, f"{len(set(seen))} came\n{broker.log()[-3000:]}"
                try:
                    seen += member.poll(0.2)
                    if len(seen) % 200 == 0:
                        member.commit()
                except KafkaException:
                    continue  # the worker is down; the client tries again
                if killed < 4 and len(set(seen)) > (killed + 1) * 500:
                    pid = broker.kill("worker", killed % 2)
                    broker.wait_restarted("worker", killed % 2, pid)
                    killed += 1
            writer.join()
            assert producer.flush(30) == 0
            assert not failed
            assert killed == 4
            wait_until(lambda: _commits(member), 30, "a commit succeeds")
            topic.wait_for_pending("g", 0)
        stored = [fields[b"value"] for _, fields in topic.store.xrange(topic.key())]
        assert len(stored) == len(set(stored)), "a retried batch was appended twice"
        assert set(stored) == set(seen) == wanted
        facts = topic.group("g")
        assert facts is not None
        assert facts["lag"] in (0, None)
        topic.close()


def _commits(member: Member) -> bool:
    try:
        member.commit()
    except KafkaException as refusal:
        return bool(refusal.args[0].name() == "_NO_OFFSET")
    return True


def test_transactions_are_refused(topic: Native) -> None:
    record = Record(0, 1_700_000_000_000, None, b"v", NO_HEADERS)
    batch = build_batch(
        [record],
        base_offset=0,
        last_offset=0,
        attributes=TRANSACTIONAL,
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
    )
    data = [TopicProduceData(topic.name, partition_data=[PartitionProduceData(0, bytes(batch))])]
    for transactional_id in ("t", None):
        with RawClient(topic.broker.port) as client:
            request = ProduceRequest(transactional_id, -1, 5000, data)
            answer = client.call(request, NAMED_PRODUCE).responses[0].partition_responses[0]
        assert answer.error_code != 0
        assert "transaction" in answer.error_message
    assert topic.store.xlen(topic.key()) == 0


def test_two_topics_of_one_stream(moldau: Broker) -> None:
    shared = f"shared-{uuid.uuid4().hex[:10]}"
    one = Native(moldau, moldau_native_key=shared)
    two = Native(moldau, moldau_native_key=shared, moldau_native_value="note")
    one.store.xadd(shared, {"value": "v", "note": "n"})

    with one.member("g1") as first, two.member("g2") as second:
        assert first.read(1) == [b'{"value":"v","note":"n"}']
        assert second.read(1) == [b"n"]
        one.store.xadd(shared, {"note": "m"})
        assert second.read(1) == [b"m"]
        assert first.read(1) == [b'{"note":"m"}']
    two.admin.delete_topics([two.name])[two.name].result()
    one.store.xadd(shared, {"value": "still there"})
    with one.member("g3") as third:
        assert len(third.read(3)) == 3
    one.close()
    two.close()


def test_functions_that_were_removed(start_moldau: Start) -> None:
    topic = Native(start_moldau(workers=1, broker=QUICK))
    topic.produce(b"1")
    topic.store.function_flush()
    topic.produce(b"2")
    with topic.member("g") as member:
        assert member.read(2) == [b"1", b"2"]
        topic.store.function_flush()
        topic.add(3)
        assert member.read(1) == [b"3"]
        member.commit()
    topic.close()


def test_a_store_that_goes_away_for_a_moment(start_moldau: Start) -> None:
    broker = start_moldau(workers=2, broker=QUICK)
    topic = Native(broker)
    topic.add(*range(10))
    with topic.member("g") as member:
        assert member.read(10) == [b"%d" % number for number in range(10)]
        for number in range(10, 15):
            for client in topic.store.client_list():
                if client["name"].startswith("moldau"):
                    topic.store.client_kill_filter(_id=client["id"])
            topic.add(number)
            assert member.read(1) == [b"%d" % number]
        wait_until(lambda: _commits(member), 30, "a commit succeeds")
        topic.wait_for_pending("g", 0)
    topic.close()


def test_a_key_that_became_something_else(start_moldau: Start) -> None:
    """That topic is in trouble, and only that one."""
    broker = start_moldau(workers=1, broker=QUICK)
    broken, topic = Native(broker), Native(broker)
    broken.add(1)
    with broken.member("b") as one, topic.member("g") as other:
        assert one.read(1) == [b"1"]
        broken.store.set(broken.key(), "text")
        for number in range(10):
            assert one.poll(0.05) == []
            topic.add(number)
            assert other.read(1) == [b"%d" % number]
        third = Native(broker)
        third.produce(b"v")
        broken.store.delete(broken.key())
        broken.add(2)
        assert one.read(1) == [b"2"]
        third.close()
    broken.close()
    topic.close()


def test_a_fetch_that_waits_for_more(topic: Native) -> None:
    settings = {"fetch_min_bytes": 5_000, "fetch_wait_max_ms": 3_000}
    with topic.member("waits", **settings) as member:
        topic.add("x" * 100)
        assert member.read(1) == [b"x" * 100]  # when it has waited long enough
        for number in range(100):
            topic.add(f"{number:0100}")
        assert member.read(100) == [b"%0100d" % number for number in range(100)]
        assert topic.pending("waits") == {member.member_id: 101}
        member.commit()
        topic.wait_for_pending("waits", 0)


@pytest.mark.skipif(KCAT is None, reason="kcat is not installed")
def test_kcat_and_redis_side_by_side(topic: Native) -> None:
    def kcat(*words: str, given: str = "") -> str:
        assert KCAT is not None
        command = [KCAT, "-b", topic.broker.bootstrap, *words]
        done = subprocess.run(
            command, input=given, capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout

    kcat("-P", "-t", topic.name, "-K:", "-H", "source=kcat", given="k1:one\nk2:two\n")
    entries = topic.store.xrange(topic.key())
    assert [(fields[b"key"], fields[b"value"]) for _, fields in entries] == [
        (b"k1", b"one"),
        (b"k2", b"two"),
    ]
    assert entries[0][1][b"header.source"] == b"kcat"
    (three,) = topic.add("three")
    lines = kcat("-C", "-t", topic.name, "-o", "beginning", "-e", "-q", "-f", "%o %k %s\n")
    assert lines.splitlines() == [
        f"{offset_of(entries[0][0])} k1 one",
        f"{offset_of(entries[1][0])} k2 two",
        f"{offset_of(three)}  three",
    ]


@pytest.mark.slow
def test_two_minutes_of_everything(start_moldau: Start) -> None:
    """Writers of both kinds, two groups that change, workers that die: at least once in each."""
    broker = start_moldau(workers=2, broker={**QUICK, "group.min.session.timeout.ms": 500})
    topic = Native(broker, 2)
    until = time.monotonic() + 120
    written: list[set[bytes]] = [set(), set()]

    def write(partition: int) -> None:
        with redis.Redis.from_url(broker.store_url) as store:
            number = 0
            while time.monotonic() < until:
                value = b"r%d.%d" % (partition, number)
                store.xadd(topic.key(partition), {"value": value})
                written[partition].add(value)
                if number % 500 == 0:
                    pipe = store.pipeline(transaction=True)
                    for more in range(1500):
                        pipe.xadd(topic.key(partition), {"value": value + b".%d" % more})
                        written[partition].add(value + b".%d" % more)
                    pipe.execute()
                number += 1
                time.sleep(0.005)

    def read(group: str, seen: set[bytes]) -> None:
        while time.monotonic() < until + 60:
            with topic.member(group) as member:
                ends = time.monotonic() + 15
                while time.monotonic() < ends:
                    try:
                        got = member.poll(0.2)
                        seen.update(got)
                        if not len(seen) % 100:
                            member.commit()
                    except KafkaException:
                        continue
                    if time.monotonic() > until and not got and seen >= written[0] | written[1]:
                        _commits(member)
                        return

    groups: dict[str, set[bytes]] = {"one": set(), "two": set()}
    threads = [threading.Thread(target=write, args=(partition,)) for partition in range(2)]
    threads += [threading.Thread(target=read, args=one) for one in groups.items()]
    for thread in threads:
        thread.start()
    turn = 0
    while time.monotonic() < until - 20:
        time.sleep(15)
        pid = broker.kill("worker", turn % 2)
        broker.wait_restarted("worker", turn % 2, pid)
        turn += 1
    for thread in threads:
        thread.join()

    for group, seen in groups.items():
        assert seen == written[0] | written[1]
        for partition in range(2):
            topic.wait_for_pending(group, 0, partition)
    topic.close()
