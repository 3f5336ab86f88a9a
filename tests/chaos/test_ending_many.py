"""Very many transactions whose end is decided and not yet written when their owners die."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.placement import leader_of, owner_of
from moldau.broker.wire.messages.end_txn import EndTxnRequest
from moldau.broker.wire.messages.init_producer_id import InitProducerIdRequest
from moldau.broker.wire.messages.list_transactions import ListTransactionsRequest
from tests.support.brokers.running import Broker, wait_until
from tests.support.proofs.committed import read_transactions
from tests.support.proofs.ending import PATIENCE_S, MakeScene, scenes
from tests.support.proofs.hammer import worker_ports
from tests.support.raw.calls import create_topic
from tests.support.raw.client import RawClient
from tests.support.raw.transactions import V2, batch_of, produce_request

Start = Callable[..., Broker]
WIDE, PARTITIONS = "wide", 100
PREPARED = ["PrepareCommit", "PrepareAbort"]


@pytest.fixture
def make_scene(start_moldau: Start, tmp_path: Path) -> Iterator[MakeScene]:
    with scenes(start_moldau, tmp_path) as make:
        yield make


def prepared(ports: list[int]) -> int:
    """How many transactions are ending, by their coordinators; -1: they do not know yet."""
    count = 0
    for port in ports:
        with RawClient(port) as client:
            answer = client.call(ListTransactionsRequest(PREPARED))
        if answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return -1
        assert answer.error_code == 0, answer
        count += len(answer.transaction_states)
    return count


def begin(clients: list[RawClient], name: str, partitions: list[int]) -> tuple[int, int]:
    """A transaction with a record in each; the producer's id and epoch."""
    owner = clients[owner_of(name, len(clients))]
    identity = owner.call(InitProducerIdRequest(name, 60_000))
    assert identity.error_code == 0, identity
    me = (identity.producer_id, identity.producer_epoch)
    for partition in partitions:
        batch = batch_of(name.encode(), producer_id=me[0], epoch=me[1])
        request = produce_request(WIDE, partition, batch, name)
        leader = clients[leader_of(WIDE, partition, len(clients))]
        (answer,) = leader.call(request, V2.produce).responses[0].partition_responses
        assert answer.error_code == 0, answer
    return me


def test_7_15_very_many_are_prepared_when_their_owners_die(
    make_scene: MakeScene, record_property: Callable[[str, object], None]
) -> None:
    count = 1_000
    scene = make_scene(V2)
    ports = worker_ports(scene.broker)
    names = [f"id-{number}" for number in range(count)]
    places = {
        name: [number % PARTITIONS, (7 * number + 1) % PARTITIONS]
        for number, name in enumerate(names)
    }
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(RawClient(port)) for port in ports]
        create_topic(clients[0], WIDE, partitions=PARTITIONS)
        wait_until(lambda: prepared(ports) == 0, PATIENCE_S, "all slots are loaded")
        identities = {name: begin(clients, name, places[name]) for name in names}
        appends = [scene.link(worker, "bulk").requests for worker in range(len(ports))]
        for flow in appends:
            scene.do(flow.hold)
        for number, name in enumerate(names):
            request = EndTxnRequest(name, *identities[name], committed=number % 2 == 0)
            answer = clients[owner_of(name, len(ports))].call(request)
            assert answer.error_code == 0, answer
    assert prepared(ports) == count
    pids = scene.broker.pids("worker")
    began = time.monotonic()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for worker, pid in enumerate(pids):
        scene.broker.wait_restarted("worker", worker, pid)
    back = time.monotonic()
    wait_until(lambda: prepared(ports) == 0, PATIENCE_S, "all are complete")
    seconds = time.monotonic() - back
    for flow in appends:
        scene.do(flow.release)  # too late

    kinds = [number % 2 == 0 for number in range(count)]
    markers: Counter[tuple[int, int, bool]] = Counter()
    for partition in range(PARTITIONS):
        read = read_transactions(ports[0], WIDE, partition)
        assert not read.open
        markers.update((partition, each.producer_id, each.commit) for each in read.markers)
    expected = {
        (partition, identities[name][0], kind)
        for name, kind in zip(names, kinds, strict=True)
        for partition in places[name]
    }
    assert markers == Counter(expected)
    record_property("seconds_until_all_are_complete", round(seconds, 2))
    print(
        f"{count:,} decided transactions over {PARTITIONS} partitions: all complete "
        f"{seconds:.2f} s after their owners were back, which took {back - began:.2f} s"
    )
