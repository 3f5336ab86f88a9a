"""Native topics on a store that loses its tail: what holds, and what does not.

Their offsets come from the store's clock, which does not go back here, so no offset names two
records. There are no leader epochs and no recorded gaps; an idempotent producer whose last batches
are gone is refused (README of broker/log/native).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from moldau.broker.errors import ErrorCode
from tests.support.brokers.running import Broker, wait_until
from tests.support.proofs.hammer import worker_ports
from tests.support.proofs.load_clients import ConfluentLeaderLoad, Reader
from tests.support.proofs.observed_producer import ObservedProducer, new_producer_id
from tests.support.proofs.observer import Observer, until_answered
from tests.support.raw.calls import create_topic
from tests.support.raw.client import RawClient
from tests.support.stores.lossy import programs
from tests.support.stores.stages import STAGES, Stage

Start = Callable[..., Broker]
TOPIC = "orders"
QUICK = {"group.initial.rebalance.delay.ms": 100}
EVERY = [
    pytest.param(name, marks=[] if name == "cut" else [pytest.mark.slow]) for name in sorted(STAGES)
]


@pytest.fixture(params=EVERY)
def stage(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stage]:
    with STAGES[request.param](tmp_path, programs()["valkey"]) as made:
        yield made


def serve(start: Start, stage: Stage) -> tuple[Broker, Observer]:
    broker = start(redis=stage.url, workers=2, broker=QUICK)
    ports = worker_ports(broker)
    with RawClient(ports[0]) as client:
        create_topic(client, TOPIC, {"moldau.storage": "native"})
    return broker, Observer(ports, TOPIC, native=True)


def add(stage: Stage, observer: Observer, *values: bytes) -> None:
    """Add entries as a Redis application does."""
    with redis.Redis.from_url(stage.url) as client:
        for value in values:
            found: Any = client.xadd(f"moldau:{TOPIC}:0", {"value": value})
            ms, _, sequence = found.partition(b"-")
            observer.acknowledged(0, (int(ms) << 10) + int(sequence), value)


def test_no_offset_of_a_native_topic_names_two_records(stage: Stage, start_moldau: Start) -> None:
    broker, observer = serve(start_moldau, stage)
    ports = observer.ports
    kept = ObservedProducer(observer, "kept", new_producer_id(ports[0]))
    lost = ObservedProducer(observer, "lost", new_producer_id(ports[1]))
    plain = ObservedProducer(observer, "plain")
    for port in ports:
        for producer in (kept, lost, plain):
            producer.send(port, 10)
    add(stage, observer, b"redis:1", b"redis:2")
    stage.prepare()
    for port in ports:
        lost.send(port, 10)
        plain.send(port, 3_000)  # more than a millisecond has sequences
    add(stage, observer, b"redis:3", b"redis:4")
    observer.look()

    stage.strike(observer.lost_something)
    until_answered(ports, TOPIC)

    observer.look()
    for port in reversed(ports):
        kept.send(port, 10)
        plain.send(port, 10)
        add(stage, observer, b"redis:after-%d" % port)
        fresh = ObservedProducer(observer, f"fresh-{port}", new_producer_id(port))
        for other in ports:
            fresh.send(other, 3)
    code = lost.send_once(ports[0], 5)
    if stage.loses:
        # Its batches in between are gone, and the stream does not say so.
        assert code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    else:
        assert code is ErrorCode.NONE
    views = observer.check(stage.url, may_lose=stage.loses)
    for kill in (False, True):
        if kill:
            broker.kill_everything()
        broker.stop()
        assert "Traceback" not in broker.log()
        broker = start_moldau(redis=stage.url, workers=2, port=broker.port, broker=QUICK)
        assert observer.check(stage.url, may_lose=stage.loses) == views
    plain.send(ports[0], 1)
    observer.check(stage.url, may_lose=stage.loses)


def test_a_native_topics_clients_go_on(stage: Stage, start_moldau: Start) -> None:
    """Producers that are not idempotent, and the members of a group."""
    broker, observer = serve(start_moldau, stage)
    load = ConfluentLeaderLoad(broker.bootstrap, observer, "leader")
    reader = Reader("confluent", broker.bootstrap, observer)
    with contextlib.ExitStack() as stack:
        stack.callback(reader.stop)
        stack.callback(load.abandon)
        wait_until(lambda: load.acknowledged > 100 and reader.has_read_something(), 60, "at work")
        stage.prepare()
        time.sleep(1)
        stage.strike(observer.lost_something)
        before = load.acknowledged
        wait_until(lambda: load.acknowledged > before + 100, 60, "the producer goes on")
        load.finish()
        reader.finish(observer.check(stage.url, may_lose=stage.loses))
        observer.check(stage.url, may_lose=stage.loses)
