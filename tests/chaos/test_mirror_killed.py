"""A mirror while everything is killed: each record is there once, at its offset.

Producers write to the source all the time, one of them in transactions that it commits or aborts.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.integration.mirror.mirroring import (
    PATIENCE_S,
    RunningMirror,
    assert_equal,
    bounds,
    cut_over,
    mirror_once,
)
from tests.support.brokers.running import Broker
from tests.support.proofs.observer import until_answered
from tests.support.raw.calls import create_topic, read_all
from tests.support.raw.client import RawClient, make_batch
from tests.support.stores.lossy import LossyStore, programs

Start = Callable[..., Broker]
PLAIN, TRANSACTIONAL = "shop.orders", "shop.payments"
TOPICS = r"shop\..*"


@contextmanager
def writing(source: Broker) -> Iterator[dict[str, int]]:
    """Producers, for as long as it lasts; how many records each has written."""
    stopping = threading.Event()
    written = {PLAIN: 0, TRANSACTIONAL: 0}
    faults: list[BaseException] = []

    def plain() -> None:
        producer = Producer({"bootstrap.servers": source.bootstrap, "enable.idempotence": True})
        while not stopping.is_set():
            for _ in range(50):
                producer.produce(PLAIN, b"order %d" % written[PLAIN])
                written[PLAIN] += 1
            assert producer.flush(PATIENCE_S) == 0

    def transactional() -> None:
        rng = random.Random(7)
        producer = Producer({"bootstrap.servers": source.bootstrap, "transactional.id": "till"})
        producer.init_transactions(PATIENCE_S)
        while not stopping.is_set():
            producer.begin_transaction()
            for _ in range(20):
                producer.produce(TRANSACTIONAL, b"payment %d" % written[TRANSACTIONAL])
                written[TRANSACTIONAL] += 1
            assert producer.flush(PATIENCE_S) == 0
            if rng.random() < 0.4:
                producer.abort_transaction(PATIENCE_S)
            else:
                producer.commit_transaction(PATIENCE_S)

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=run, args=(work,)) for work in (plain, transactional)]
    for thread in threads:
        thread.start()
    try:
        yield written
    finally:
        stopping.set()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert not faults, faults


def make_topics(source: Broker) -> None:
    with RawClient(source.port) as client:
        create_topic(client, PLAIN, partitions=3)
        create_topic(client, TRANSACTIONAL, partitions=2)


def wait_for_more(mirror: RunningMirror, records: int) -> None:
    mirror.wait(f"{records} more records", lambda report: report["records"] >= records)


def test_kill_9_of_everything(start_moldau: Start) -> None:
    source, target = start_moldau(workers=1), start_moldau(workers=2)
    make_topics(source)
    with writing(source) as written:
        for victim in ("worker", "store", "mirror", "source"):
            mirror = RunningMirror(source, target, TOPICS)
            try:
                wait_for_more(mirror, 300)
                if victim == "source":
                    source.kill("worker")
                elif victim != "mirror":
                    target.kill(victim)
                if victim != "mirror":
                    wait_for_more(mirror, mirror.report()["records"] + 300)
            finally:
                mirror.kill()
    cut_over(source, target, TOPICS)
    assert_equal(source, target, PLAIN, TRANSACTIONAL)
    with RawClient(target.port) as client:
        found = [
            record.value or b""
            for partition in range(3)
            for record in read_all(client, PLAIN, partition=partition)
        ]
    assert sorted(found) == sorted(b"order %d" % number for number in range(written[PLAIN]))


def test_a_source_that_lost_records_which_are_mirrored(
    start_moldau: Start, short_tmp_path: Path
) -> None:
    """It has other records now, or none, where the mirror has those that were lost."""
    with LossyStore(short_tmp_path / "lossy", programs()["valkey"]) as store:
        source, target = start_moldau(redis=store.url, workers=1), start_moldau(workers=1)
        with RawClient(source.processes("worker")[0]["port"]) as client:
            create_topic(client, PLAIN)
            batch = make_batch([(None, b"order", time.time_ns() // 1_000_000)] * 10)
            assert client.produce(PLAIN, batch).base_offset == 0
            mirror = RunningMirror(source, target, TOPICS)
            try:
                mirror.wait("mirrored", lambda report: report["records"] == 10)
                mark = store.size()
                assert client.produce(PLAIN, batch).base_offset == 10
                mirror.wait("mirrored", lambda report: report["records"] == 20)
                store.kill()
                store.cut_to(mark)
                store.start()
                until_answered([source.processes("worker")[0]["port"]], PLAIN)
                assert client.produce(PLAIN, batch).base_offset > 20
                code, complaints = mirror.ended()
            finally:
                mirror.kill()
        assert code == 1
        assert "the source has lost its records from offset 10 on" in complaints
        assert bounds(target, PLAIN) == [(0, 20)]
        source.stop()


@pytest.mark.parametrize("program", sorted(programs()))
def test_a_store_that_loses_its_tail(
    start_moldau: Start, short_tmp_path: Path, program: str
) -> None:
    """What is lost is mirrored again, to the same offsets: they name the same records."""
    source = start_moldau(workers=1)
    make_topics(source)
    with LossyStore(short_tmp_path / "lossy", programs()[program]) as store:
        target = start_moldau(redis=store.url, workers=2)
        with writing(source) as written:
            while written[TRANSACTIONAL] < 200:
                threading.Event().wait(0.05)
        mirror_once(source, target, TOPICS)
        kept = {topic: bounds(target, topic) for topic in (PLAIN, TRANSACTIONAL)}
        mark = store.size()
        with writing(source) as written:
            while written[TRANSACTIONAL] < 200:
                threading.Event().wait(0.05)
        mirror_once(source, target, TOPICS)
        store.kill()
        store.cut_to(mark)
        store.start()
        report = mirror_once(source, target, TOPICS)
        lost = sum(
            end - kept_end
            for topic, ends in kept.items()
            for (_, end), (_, kept_end) in zip(bounds(source, topic), ends, strict=True)
        )
        assert 0 < report["records"] <= lost
        assert_equal(source, target, PLAIN, TRANSACTIONAL)
        cut_over(source, target, TOPICS)
        assert_equal(source, target, PLAIN, TRANSACTIONAL)
        target.stop()
