"""Many writers on the same partitions at once, through every worker: nothing lost, nothing twice.

Real clients go to a partition's leader. Here every producer goes to every worker, which is what a
restart, a stale view of the cluster or a router can make of it, and the hardest case for the log.
"""

import asyncio
import random
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import msgspec
import pytest
import uvloop

from moldau.broker.errors import KafkaError
from moldau.broker.log.state.log_state import LogState
from moldau.broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tests.support.brokers.running import ROOT, Broker, clean_environment, running_broker
from tests.support.drivers.log_host import Host, WaitedAppend, stored
from tests.support.proofs.hammer import Orders, Report, Sent, hammers, worker_ports
from tests.support.proofs.proof import Follower, prove, prove_partition, stored_by
from tests.support.raw.calls import create_topic
from tests.support.raw.client import RawClient, make_batch, records_in
from tests.support.stores.redis_server import RedisServer

_names = (f"hammered-{number}" for number in count())


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    # A small cache and few entries between snapshots, so that everything is gone through.
    with running_broker(
        workers=3, tail_cache_bytes="2mb", snapshot_entries=50, spare_process=None
    ) as started:
        yield started


def hammer(broker: Broker, partitions: int, orders: list[Orders], *, follow: bool = True) -> int:
    """Run the producers, and a follower of every partition on every worker; prove; say how many."""
    ports = worker_ports(broker)
    topic = next(_names)
    with RawClient(ports[0]) as client:
        create_topic(client, topic, partitions=partitions)
    followers = [
        Follower(port, topic, partition)
        for port in ports
        for partition in range(partitions)
        if follow
    ]
    with hammers(orders, ports, topic, partitions) as processes:
        reports = [process.report() for process in processes]
    return prove(ports, topic, range(partitions), reports, followers)


def test_idempotent_and_plain_writers_through_every_worker(broker: Broker) -> None:
    """4.1, and the proof: dense, none lost, none twice, in order, the same bytes everywhere."""
    produced = hammer(
        broker,
        2,
        [
            Orders("switching", switch_every=7),
            Orders("idempotent", most_bytes=200, most_records=5),
            Orders("plain", idempotent=False),
            Orders("large", most_bytes=60_000, most_records=10, pause_s=0.01),
        ],
    )
    assert produced > 100


def test_writers_that_change_workers_in_the_middle_of_everything(broker: Broker) -> None:
    """4.1: a producer's batches are in two workers' queues at once, again and again."""
    produced = hammer(
        broker,
        1,
        [
            Orders("a", switch_every=3, most_bytes=100, most_records=3),
            Orders("b", switch_every=4, most_bytes=100, most_records=3),
            Orders("c", switch_every=11, most_bytes=4_000),
        ],
    )
    assert produced > 100


def test_identical_batches_of_plain_writers_are_all_there(broker: Broker) -> None:
    produced = hammer(
        broker,
        2,
        [
            Orders(f"same-{number}", idempotent=False, identical=True, most_bytes=50)
            for number in range(4)
        ],
        follow=False,
    )
    assert produced > 100


def test_4_1_what_follows_a_request_that_has_to_be_looked_up_stays_behind_it(
    broker: Broker,
) -> None:
    """Topics made a moment ago through another worker, the first request naming several."""
    creator, worker = worker_ports(broker)[:2]
    with RawClient(creator) as maker, RawClient(worker) as client:
        for _ in range(15):
            topics = [next(_names) for _ in range(4)]
            for topic in topics:
                create_topic(maker, topic)
            everywhere = [partition_batch(topic, 0) for topic in topics]
            client.send(ProduceRequest(acks=-1, timeout_ms=9_000, topic_data=everywhere), 12)
            for sequence in range(1, 4):
                data = [partition_batch(topics[0], sequence)]
                client.send(ProduceRequest(acks=-1, timeout_ms=9_000, topic_data=data), 12)
            for _ in range(4):
                for answer in client.receive().responses:
                    assert answer.partition_responses[0].error_code == 0, answer
            records = records_in(client.fetch(topics[0], 0))
            assert [record.value for record in records] == [b"0", b"1", b"2", b"3"]


def partition_batch(topic: str, sequence: int) -> TopicProduceData:
    batch = make_batch(
        [(None, b"%d" % sequence, 1)], producer_id=77, producer_epoch=0, base_sequence=sequence
    )
    return TopicProduceData(name=topic, partition_data=[PartitionProduceData(0, memoryview(batch))])


# --- without a server: many log objects, one store ---


WRITER = "from tests.chaos.test_hammer import writer_main; writer_main()"


def writer_main() -> None:
    """What a process of the test below does: appends through a log of its own."""
    url, topic, name, seed, rounds, idempotent = sys.argv[1:]
    report = uvloop.run(
        write(url, topic, name, int(seed), int(rounds), idempotent=idempotent == "1")
    )
    sys.stdout.buffer.write(msgspec.json.encode(report))


async def write(
    url: str, topic: str, name: str, seed: int, rounds: int, *, idempotent: bool
) -> Report:
    chance = random.Random(seed)
    report = Report(name, idempotent, identical=False, sent=[])
    async with Host(url, name, snapshot_entries=chance.choice([5, 50, 1000])) as host:
        log = host.log(topic)
        number = 0
        for _ in range(rounds):
            waiting: list[tuple[Sent, WaitedAppend]] = []
            for _ in range(chance.randint(1, 5)):
                records = chance.randint(1, 4)
                sent = Sent(0, number, records)
                values = [
                    (None, f"{name}:{number + extra}|{'x' * chance.randint(0, 99)}".encode(), 1)
                    for extra in range(records)
                ]
                batch = make_batch(
                    values,
                    producer_id=seed if idempotent else -1,
                    producer_epoch=0 if idempotent else -1,
                    base_sequence=number if idempotent else -1,
                )
                number += records
                appends = [WaitedAppend(batch)]
                if idempotent and chance.random() < 0.2:
                    appends.append(WaitedAppend(batch))  # sent again while it is on its way
                for append in appends:
                    log.append(append)
                    waiting.append((sent, append))
                report.sent.append(sent)
            for sent, append in waiting:
                try:
                    offset = await append.outcome
                except KafkaError as refusal:
                    report.fatal = f"{sent.first}: {refusal}"
                    return report
                if sent.offset not in (-1, offset):
                    report.fatal = f"{sent.first}: said to be at {sent.offset} and at {offset}"
                sent.offset = offset
        await log.current()
        replayed = LogState()
        for entry in (await stored(host, log))[: log.reader.state.entries]:
            replayed.apply(entry.blob)
        replayed.silent = log.reader.state.silent  # by this worker's clock: not in the log
        if replayed.snapshot() != log.reader.state.snapshot():
            report.fatal = "what it knows is not the fold of the log"
    return report


async def test_log_objects_of_several_processes_on_one_stream(
    server: RedisServer, tmp_path: Path
) -> None:
    topic = next(_names)

    async with Host(server.url) as host:
        log = await host.create(topic)
        writers = [
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", WRITER),
                *(server.url, topic, f"w{number}", str(number), "150", str(number % 2)),
                env=clean_environment(),
                cwd=ROOT,
                stdout=asyncio.subprocess.PIPE,
            )
            for number in range(4)
        ]
        outputs = await asyncio.gather(*(writer.communicate() for writer in writers))
        reports = [msgspec.json.decode(output, type=Report) for output, _ in outputs]
        for report in reports:
            assert not report.fatal, f"{report.name}: {report.fatal}"
        values = stored_by(await stored(host, log))
        assert len(values) == sum(sent.count for report in reports for sent in report.sent)
        prove_partition(0, values, reports)
