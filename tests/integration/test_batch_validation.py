"""Batches that no consumer could read are refused, unless a topic asks for it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tests.golden import batches
from tests.support.brokers.running import Broker
from tests.support.raw.calls import create_topic
from tests.support.raw.client import RawClient, make_batch, records_in

_names = (f"validation-{os.getpid()}-{number}" for number in itertools.count())
UNREADABLE = [
    batches.garbage_gzip,
    batches.garbage_snappy,
    batches.garbage_lz4,
    batches.garbage_zstd,
    lambda: batches.miscounted(3),
    batches.trailing_bytes,
    batches.overrunning,
    batches.offsets_not_in_order,
]


@pytest.fixture
def client(moldau: Broker) -> Iterator[RawClient]:
    with RawClient(moldau.port + 1) as made:
        yield made


@pytest.mark.parametrize("bad", UNREADABLE)
def test_it_is_refused_and_others_go_on(client: RawClient, bad: Callable[[], bytearray]) -> None:
    name = next(_names)
    create_topic(client, name)
    for _ in range(3):  # also by the short way of repeated requests
        assert client.produce(name, batches.good()).error_code == 0
        assert client.produce(name, bad()).error_code == ErrorCode.INVALID_RECORD
    assert [record.offset for record in records_in(client.fetch(name, 0))] == list(range(6))


def test_a_topic_can_trust_its_producers(client: RawClient) -> None:
    name = next(_names)
    create_topic(client, name, {"moldau.batch.validation": "header"})
    assert client.produce(name, batches.garbage_gzip()).error_code == 0


def test_large_batches_keep_their_order(client: RawClient) -> None:
    """They are checked in a thread; what the client sends behind them waits."""
    name = next(_names)
    create_topic(client, name)
    large = [(None, os.urandom(100), 1) for _ in range(4000)]
    expected = []
    for number in range(6):
        is_large = number % 2 == 0
        value = b"%d" % number
        batch = make_batch([*(large if is_large else []), (None, value, 1)])
        data = [PartitionProduceData(0, memoryview(batch))]
        topic = TopicProduceData(name, partition_data=data)
        client.send(ProduceRequest(None, -1, 10_000, [topic]), 12)
        expected.append(4001 if is_large else 1)
    offsets = [client.receive().responses[0].partition_responses[0].base_offset for _ in expected]
    assert offsets == [sum(expected[:number]) for number in range(6)]


def test_a_large_unreadable_batch_is_refused_and_the_connection_goes_on(client: RawClient) -> None:
    name = next(_names)
    create_topic(client, name)
    bad = make_batch([(None, os.urandom(100), 1) for _ in range(4000)]) + b"\0\0"
    for _ in range(2):
        refused = client.produce(name, batches.sealed(bad))
        assert refused.error_code == ErrorCode.INVALID_RECORD
        assert client.produce(name, batches.good()).error_code == 0


def test_the_bad_records_of_a_batch_are_named(client: RawClient) -> None:
    """KIP-467: librdkafka fails these, and sends the others again."""
    name = next(_names)
    create_topic(client, name, {"cleanup.policy": "compact"})
    refused = client.produce(name, batches.keyless_of_three())
    assert refused.error_code == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in refused.record_errors] == [0, 2]
    assert all(error.batch_index_error_message for error in refused.record_errors)
