"""A log whose tail was lost is in a new leader epoch, and clients can tell (KIP-320).

Raw requests: a Fetch or ListOffsets with the old epoch is fenced, OffsetForLeaderEpoch says where
the old epoch ended, a Fetch beyond that says where histories diverge, and the batches of the new
epoch carry it. The same on every worker, and after a restart.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.batch import read_header
from moldau.broker.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionData,
)
from moldau.broker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from moldau.broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.broker.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.support.brokers.running import Broker, wait_until
from tests.support.proofs.hammer import worker_ports
from tests.support.proofs.observed_producer import ObservedProducer
from tests.support.proofs.observer import PATIENCE_S, Observer, until_answered
from tests.support.raw.calls import LATEST, create_topic, list_offset
from tests.support.raw.client import NAMED_FETCH, RawClient, batches_in
from tests.support.stores.lossy import programs
from tests.support.stores.stages import STAGES

Start = Callable[..., Broker]
TOPIC = "orders"


def fetch(port: int, offset: int, current: int, fetched: int = -1) -> PartitionData:
    wanted = FetchPartition(
        0,
        current_leader_epoch=current,
        fetch_offset=offset,
        last_fetched_epoch=fetched,
        partition_max_bytes=1 << 20,
    )
    with RawClient(port) as client:
        topics = [FetchTopic(TOPIC, partitions=[wanted])]
        answer = client.call(FetchRequest(topics=topics), NAMED_FETCH)
    found: PartitionData = answer.responses[0].partitions[0]
    return found


def list_end(port: int, current: int) -> tuple[int, int, int]:
    """Error, offset, leader epoch."""
    wanted = ListOffsetsPartition(0, current, LATEST)
    with RawClient(port) as client:
        request = ListOffsetsRequest(-1, topics=[ListOffsetsTopic(TOPIC, [wanted])])
        answer = client.call(request).topics[0].partitions[0]
    return answer.error_code, answer.offset, answer.leader_epoch


def end_of_epoch(port: int, current: int, epoch: int) -> tuple[int, int, int]:
    """Error, epoch, end offset."""
    wanted = OffsetForLeaderPartition(0, current, epoch)
    with RawClient(port) as client:
        request = OffsetForLeaderEpochRequest(-1, [OffsetForLeaderTopic(TOPIC, [wanted])])
        answer = client.call(request).topics[0].partitions[0]
    return answer.error_code, answer.leader_epoch, answer.end_offset


def leader_epoch(port: int) -> int:
    """What Metadata says."""
    with RawClient(port) as client:
        answer = client.call(MetadataRequest([MetadataRequestTopic(name=TOPIC)]))
    return int(answer.topics[0].partitions[0].leader_epoch)


def check_epoch(port: int, epoch: int) -> None:
    """That one only is current."""
    assert fetch(port, 0, epoch).error_code == 0
    code, end, listed = list_end(port, epoch)
    assert (code, listed) == (0, epoch)
    assert end_of_epoch(port, epoch, epoch) == (0, epoch, end)
    for wrong, error in (
        (epoch - 1, ErrorCode.FENCED_LEADER_EPOCH),
        (epoch + 1, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ):
        if wrong >= 0:
            assert fetch(port, 0, wrong).error_code == error
            assert list_end(port, wrong)[0] == error
            assert end_of_epoch(port, wrong, 0)[0] == error
    wait_until(lambda: leader_epoch(port) == epoch, PATIENCE_S, "Metadata has the epoch")


@pytest.mark.parametrize("name", ["cut", pytest.param("lagging", marks=pytest.mark.slow)])
def test_clients_with_the_old_epoch_are_fenced(
    tmp_path: Path, start_moldau: Start, name: str
) -> None:
    with STAGES[name](tmp_path, programs()["valkey"]) as stage:
        broker = start_moldau(redis=stage.url, workers=2)
        ports = worker_ports(broker)
        with RawClient(ports[0]) as client:
            create_topic(client, TOPIC)
        observer = Observer(ports, TOPIC)
        producer = ObservedProducer(observer, "plain")
        for _ in range(10):
            producer.send(ports[0], 10)
        stage.prepare()
        for _ in range(5):
            producer.send(ports[1], 10)
        for port in ports:
            check_epoch(port, 0)

        stage.strike(observer.lost_something)
        until_answered(ports, TOPIC)

        for port in ports:
            check_epoch(port, 1)
        first = producer.send(ports[1], 10)
        assert first >= 150
        for _ in range(2):
            for port in ports:
                check_epoch(port, 1)
                assert end_of_epoch(port, 1, 0) == (0, 0, 100)
                assert end_of_epoch(port, -1, 0) == (0, 0, 100)
                # A consumer that has read the lost records learns where to step back to.
                diverging = fetch(port, 150, 1, fetched=0).diverging_epoch
                assert diverging is not None
                assert (diverging.epoch, diverging.end_offset) == (0, 100)
                # One that does not know of epochs gets what follows the gap.
                for offset in (100, 120, 150, first):
                    found = batches_in(fetch(port, offset, -1))
                    header = read_header(found[0])
                    assert (header.base_offset, header.leader_epoch) == (first, 1)
                with RawClient(port) as client:
                    assert list_offset(client, TOPIC, LATEST).offset == first + 10
            observer.check(stage.url)
            assert broker.stop() == 0
            broker = start_moldau(redis=stage.url, workers=2, port=broker.port)
