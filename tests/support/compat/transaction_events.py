"""What clients' transactions outlast: a worker that is killed, compaction.

The module that runs them has a broker of its own, as `broker_of_several_workers` starts it.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from moldau.broker.placement import leader_of, owner_of
from moldau.broker.wire.batch import CONTROL, headers
from tests.support.brokers.compacting import COMPACT, wait_compacted
from tests.support.brokers.compacting import QUICK as COMPACTING
from tests.support.brokers.running import Broker, fresh_processes, running_broker
from tests.support.clients.base import EARLIEST, Place, Record
from tests.support.compat.session import Session, read, send_all, values
from tests.support.compat.transactions import (
    PARTITIONS,
    by_partition,
    commit,
    marked,
    reader,
    sent,
    transactional,
)
from tests.support.raw.calls import StoredLog

WORKERS = 3
SETTINGS = {"group.initial.rebalance.delay.ms": 100, **COMPACTING}


def broker_of_several_workers() -> Iterator[Broker]:
    """A broker for a module's `moldau` fixture. Its workers are killed, so they are fresh."""
    with fresh_processes(), running_broker(workers=WORKERS, broker=SETTINGS) as broker:
        yield broker
        # Fenced producers that wait for the garbage collector would go on trying to connect.
        gc.collect()


class KilledWorkerTests:
    @pytest.mark.parametrize("role", ["coordinator", "leader"])
    @pytest.mark.parametrize("ends", ["commit", "abort"])
    def test_a_worker_is_killed_during_a_transaction(
        self, kafka: Session, role: str, ends: str
    ) -> None:
        topic = kafka.topic(PARTITIONS)
        transactional_id = kafka.new_name()
        coordinator = owner_of(transactional_id, WORKERS)
        led = {leader_of(topic, index, WORKERS) for index in range(PARTITIONS)}
        victim = coordinator if role == "coordinator" else min(led - {coordinator})
        producer = transactional(kafka, transactional_id)
        commit(producer, topic, marked(2, "before"))

        producer.begin()
        send_all(producer, topic, marked(2, "early"))
        pid = kafka.broker.kill("worker", victim)
        for record in marked(2, "late"):
            producer.send(topic, record)
        if ends == "commit":
            producer.flush()
            producer.commit()
        else:
            producer.abort()
        commit(producer, topic, marked(2, "after"))
        kafka.broker.wait_restarted("worker", victim, pid)

        during = [*marked(2, "early"), *marked(2, "late")] if ends == "commit" else []
        expected = [*marked(2, "before"), *during, *marked(2, "after")]
        got = read(reader(kafka, topic, "read_committed"), len(expected))
        assert by_partition(got) == sent(expected)


class CompactionTests:
    """Compaction removes markers: a client must not wait for them, from one Fetch to the next."""

    def test_a_reader_goes_on_where_markers_were_removed(self, kafka: Session) -> None:
        topic = kafka.topic(configs=COMPACT)
        producer = transactional(kafka)
        consumer = kafka.consumer(isolation="read_committed", partition_fetch_bytes=2_000)
        consumer.assign({Place(topic): EARLIEST})
        kept = []
        end = 0
        for turn in range(3):
            for name in ("aborted", "committed"):
                # Together more than one Fetch: what is aborted ends in another than it began in.
                records = keyed(f"{turn}-{name}", 40)
                producer.begin()
                end = send_all(producer, topic, records)[-1].offset + 2
                if name == "committed":
                    producer.commit()
                    kept += [record.value for record in records]
                else:
                    producer.abort()
            if turn == 0:
                assert values(read(consumer, 40)) == kept
        commit(producer, topic, keyed("last", 1))  # the end of a log is left as it is
        kept += [record.value for record in keyed("last", 1)]
        wait_without_markers(kafka.broker, topic, end)

        assert values(read(consumer, 81)) == kept[40:]
        again = kafka.consumer(isolation="read_committed", partition_fetch_bytes=2_000)
        for start, expected in ((0, kept), (61, kept[20:])):  # 61: inside the first that is kept
            again.assign({Place(topic): start})
            assert values(read(again, len(expected))) == expected


# --- helpers ---


def keyed(prefix: str, count: int) -> list[Record]:
    """Records of different keys: none replaces another."""
    names = [f"{prefix}-{at:03}".encode() for at in range(count)]
    return [Record(key=name, value=name + bytes(100), partition=0) for name in names]


def wait_without_markers(broker: Broker, topic: str, end: int) -> None:
    """Wait until the topic is compacted up to an offset, with no marker left below it."""
    with redis.Redis.from_url(broker.store_url) as store:
        log = StoredLog(store, topic)
        wait_compacted(log, end)
        entries: Any = store.xrange(log.clean_key)
    batches = [header for _, fields in entries for header in headers(fields[b"b"])]
    assert batches
    assert not any(header.attributes & CONTROL for header in batches)
