"""What read_committed readers get, wait for and skip: 7.19 to 7.22."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from moldau.broker.placement import leader_of
from moldau.broker.wire.batch import CONTROL, read_header
from moldau.broker.wire.messages.end_txn import EndTxnRequest
from moldau.broker.wire.messages.init_producer_id import InitProducerIdRequest
from tests.support.brokers.running import Broker, running_broker, wait_until
from tests.support.raw.calls import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    create_topic,
    delete_records,
    list_offset,
    worker_clients,
)
from tests.support.raw.client import RawClient, batches_in, make_batch
from tests.support.raw.committed import (
    READ_COMMITTED,
    await_stable,
    fetch_committed,
    read_committed,
    stable_end,
    visible,
)
from tests.support.raw.fetching import parked
from tests.support.raw.transactions import (
    V2,
    ClientVersion,
    RawProducer,
    await_loaded,
    batch_of,
    produce_request,
)

Producers = Callable[..., RawProducer]


# 7.19


def test_7_19_the_older_of_two_is_open(
    broker: Broker,
    producers: Producers,
    router: RawClient,
    topic: str,
    client_version: ClientVersion,
    direct: bool,
) -> None:
    assert router.produce(topic, make_batch([(None, b"plain", 1_000)])).base_offset == 0
    older = producers(client_version, "older-" + topic, direct=direct).begin()
    newer = producers(client_version, "newer-" + topic, direct=direct).begin()
    assert older.write(topic, b"older") == 1
    assert newer.write(topic, b"newer", b"newer too") == 2
    assert router.produce(topic, make_batch([(None, b"after", 1_000)])).base_offset == 4
    newer.finish(commit=True)
    with worker_clients(broker) as clients:
        for client in (router, *clients):
            assert read_committed(client, topic) == [b"plain"]
            assert stable_end(client, topic) == 1
            answer = client.fetch(topic, 0)
            assert answer.aborted_transactions is None
            assert read_header(batches_in(answer)[-1]).next_offset >= 5
    older.finish(commit=False)
    await_stable(router, topic, 7)
    expected = [b"plain", b"newer", b"newer too", b"after"]
    with worker_clients(broker) as clients:
        for client in clients:
            assert read_committed(client, topic) == expected


def test_7_19_list_offsets(broker: Broker, producers: Producers, topic: str) -> None:
    base = int(time.time() * 1000)
    with worker_clients(broker) as clients:
        leader = clients[leader_of(topic, 0, 2)]
        for number in range(3):
            leader.produce(topic, make_batch([(None, b"plain", base + number)]))
        producer = producers(V2).begin()
        batch = batch_of(
            b"open",
            b"open",
            producer_id=producer.producer_id,
            epoch=producer.epoch,
            timestamp=base + 10,
        )
        assert producer.send(topic, batch=batch).base_offset == 3
        for client in clients:

            def found(timestamp: int, level: int, at: RawClient = client) -> int:
                return int(list_offset(at, topic, timestamp, isolation_level=level).offset)

            for level in (0, READ_COMMITTED):
                assert found(EARLIEST, level) == 0
                assert found(base + 1, level) == 1
            assert [found(LATEST, level) for level in (0, READ_COMMITTED)] == [5, 3]
            assert [found(base + 5, level) for level in (0, READ_COMMITTED)] == [3, -1]
            assert [found(MAX_TIMESTAMP, level) for level in (0, READ_COMMITTED)] == [3, -1]
        producer.finish(commit=True)
        await_stable(leader, topic, 6)
        for client in clients:
            answer = list_offset(client, topic, base + 5, isolation_level=READ_COMMITTED)
            assert answer.offset == 3
            answer = list_offset(client, topic, LATEST, isolation_level=READ_COMMITTED)
            assert answer.offset == 6


# 7.20


class Aborted(NamedTuple):
    first: int
    producer: int
    marker: int


PRODUCERS, ROUNDS = 100, 125
COMMITTED_EVERY = 5


def _write_many(client: RawClient, topic: str) -> set[tuple[int, int]]:
    """10,000 aborted transactions, interleaved with committed ones and with each other. First
    offset and producer of those that were aborted."""
    generator = random.Random(1)
    ids = [f"many-{number}" for number in range(PRODUCERS)]
    identity = {}
    for name in ids:
        answer = client.call(InitProducerIdRequest(name, 60_000))
        identity[name] = (answer.producer_id, answer.producer_epoch)
    aborted: set[tuple[int, int]] = set()
    for _ in range(ROUNDS):
        for name in ids:
            producer_id, epoch = identity[name]
            batch = batch_of(b"x", producer_id=producer_id, epoch=epoch)
            client.send(produce_request(topic, 0, batch, name), V2.produce)
        for number, name in enumerate(ids):
            (answer,) = client.receive().responses[0].partition_responses
            assert answer.error_code == 0, answer
            if number % COMMITTED_EVERY:
                aborted.add((answer.base_offset, identity[name][0]))
        order = list(enumerate(ids))
        generator.shuffle(order)
        for number, name in order:
            commit = number % COMMITTED_EVERY == 0
            client.send(EndTxnRequest(name, *identity[name], commit), V2.end_txn)
        for _, name in order:
            answer = client.receive()
            assert answer.error_code == 0, answer
            identity[name] = (answer.producer_id, answer.producer_epoch)
    return aborted


class Filled(NamedTuple):
    broker: Broker
    topic: str
    aborted: list[Aborted]
    committed: int
    end: int


@pytest.fixture(scope="module")
def filled() -> Iterator[Filled]:
    """A broker of its own, as its workers are killed."""
    topic = "aborted"
    with running_broker(workers=2) as broker:
        with RawClient(broker.port) as client:
            await_loaded(client)
            create_topic(client, topic)
            with RawProducer(broker, "long") as long:  # from the beginning to the end
                long.begin()
                long.write(topic, b"lost")
                aborted = _write_many(client, topic)
                long.finish(commit=False)
            aborted.add((0, long.producer_id))
            transactions = 1 + PRODUCERS * ROUNDS
            await_stable(client, topic, 2 * transactions)
            found = _transactions(client, topic)
        placed = sorted(one for one in found if one[:2] in aborted)
        assert len(placed) == len(aborted) == 10_001
        yield Filled(broker, topic, placed, transactions - len(placed), 2 * transactions)


def _transactions(client: RawClient, topic: str) -> list[Aborted]:
    """All there are, also those that were committed: from the batches themselves."""
    opened: dict[int, int] = {}
    found: list[Aborted] = []
    offset = 0
    while batches := batches_in(client.fetch(topic, offset)):
        for batch in batches:
            header = read_header(batch)
            producer = header.producer_id
            if header.attributes & CONTROL:
                found.append(Aborted(opened.pop(producer), producer, header.base_offset))
            else:
                opened.setdefault(producer, header.base_offset)
            offset = header.next_offset
    return found


def _check(client: RawClient, filled: Filled, offset: int, max_bytes: int) -> int:
    """Fetch, and compare what is listed with what has to be; the offset to go on from."""
    answer = fetch_committed(client, filled.topic, offset, max_bytes=max_bytes)
    assert (answer.error_code, answer.last_stable_offset) == (0, filled.end)
    upto = read_header(batches_in(answer)[-1]).next_offset
    listed = [(one.first_offset, one.producer_id) for one in answer.aborted_transactions or []]
    assert listed == [
        one[:2] for one in filled.aborted if one.marker >= offset and one.first < upto
    ]
    assert all(value is not None for _, value in visible(answer, offset))
    return upto


def _check_everywhere(client: RawClient, filled: Filled) -> None:
    for max_bytes in (1, 1_000, 100_000):
        for offset in (0, 1, 4_321, 12_500, filled.end - 9_000, filled.end - 200, filled.end - 1):
            _check(client, filled, offset, max_bytes)
    offset = 0
    while offset < filled.end:
        offset = _check(client, filled, offset, 1 << 20)
    assert len(read_committed(client, filled.topic)) == filled.committed


def test_7_20_the_leader_and_the_other_worker_list_the_same(filled: Filled) -> None:
    with worker_clients(filled.broker) as clients:
        for client in clients:
            _check_everywhere(client, filled)


def test_7_20_after_a_restart(filled: Filled) -> None:
    for worker in (0, 1):
        old_pid = filled.broker.kill("worker", worker)
        filled.broker.wait_restarted("worker", worker, old_pid)
    with worker_clients(filled.broker) as clients:
        for client in reversed(clients):
            _check_everywhere(client, filled)


def test_7_20_with_what_was_appended_since(filled: Filled) -> None:
    """What the workers have in memory and what only the store has, in one list."""
    aborted = list(filled.aborted)
    at = filled.end
    with RawProducer(filled.broker, "more") as producer:
        producer.begin()
        for number in range(40):
            assert producer.write(filled.topic, b"more") == at
            commit = number % 4 == 0
            producer.finish(commit=commit)
            if not commit:
                aborted.append(Aborted(at, producer.producer_id, at + 1))
            at += 2
    longer = filled._replace(aborted=aborted, committed=filled.committed + 10, end=at)
    with worker_clients(filled.broker) as clients:
        for client in clients:
            await_stable(client, filled.topic, at)
            for offset in range(at - 10, at):
                for max_bytes in (1, 500, 1 << 20):
                    _check(client, longer, offset, max_bytes)
            _check_everywhere(client, longer)


# 7.21


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("reader", ["leader", "other"])
def test_7_21_a_parked_fetch_is_woken_by_the_marker_only(
    broker: Broker,
    producers: Producers,
    router: RawClient,
    topic: str,
    client_version: ClientVersion,
    commit: bool,
    reader: str,
) -> None:
    leader = leader_of(topic, 0, 2)
    port = broker.processes("worker")[leader if reader == "leader" else 1 - leader]["port"]
    producer = producers(client_version).begin()
    offset = 0
    for number in range(3):  # the first time the log has to be loaded
        waiting = parked(port, topic, offset, isolation_level=READ_COMMITTED)
        producer.write(topic, b"a", b"b")
        with RawClient(port) as anyone:  # reads what is not committed meanwhile
            assert batches_in(anyone.fetch(topic, offset))
        router.produce(topic, make_batch([(None, b"plain", 1)]))
        time.sleep(0.2)
        assert waiting.is_waiting
        producer.finish(commit=commit)
        answer = waiting.woken()
        assert answer.last_stable_offset == offset + 4
        expected = [b"a", b"b", b"plain"] if commit else [b"plain"]
        assert [value for _, value in visible(answer, offset)] == expected, number
        offset += 4


def test_7_21_a_plain_append_below_what_is_open_wakes_it(
    broker: Broker, producers: Producers, router: RawClient, topic: str
) -> None:
    port = broker.processes("worker")[leader_of(topic, 0, 2)]["port"]
    waiting = parked(port, topic, 0, isolation_level=READ_COMMITTED)
    router.produce(topic, make_batch([(None, b"plain", 1)]))
    assert [value for _, value in visible(waiting.woken(), 0)] == [b"plain"]


# 7.22


def _await(client: RawClient, topic: str, name: str, offset: int) -> None:
    wait_until(
        lambda: getattr(fetch_committed(client, topic, 3), name) == offset, 30, f"{name} {offset}"
    )


@pytest.mark.parametrize("commit", [True, False])
def test_7_22_delete_records_into_an_open_transaction(
    broker: Broker,
    producers: Producers,
    router: RawClient,
    topic: str,
    client_version: ClientVersion,
    commit: bool,
) -> None:
    router.produce(topic, make_batch([(None, b"plain", 1)]))
    producer = producers(client_version).begin()
    for value in (b"a", b"b", b"c"):
        producer.write(topic, value)
    router.produce(topic, make_batch([(None, b"after", 1)]))
    assert delete_records(router, topic, 3).error_code == 0
    with worker_clients(broker) as clients:
        for client in clients:
            _await(client, topic, "log_start_offset", 3)  # the other worker hears of it later
            answer = fetch_committed(client, topic, 3)
            assert (answer.error_code, answer.last_stable_offset) == (0, 3)
            assert not batches_in(answer)
            found = list_offset(client, topic, LATEST, isolation_level=READ_COMMITTED)
            assert found.offset == 3
        producer.finish(commit=commit)
        for client in clients:
            _await(client, topic, "last_stable_offset", 6)
            expected = [b"c", b"after"] if commit else [b"after"]
            assert read_committed(client, topic, offset=3) == expected
