"""A producer that repeats itself on one connection: what changes meanwhile holds for it at once.

Requests that begin like one before are recognised by their bytes (details/produce_route.py):
nothing about their topic may be remembered longer than it is true.
"""

from collections.abc import Iterator
from itertools import count

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tests.support.brokers.running import Broker
from tests.support.proofs.hammer import worker_ports
from tests.support.raw.calls import alter_topic, create_topic
from tests.support.raw.client import RawClient, make_batch, records_in

_names = (f"again-{number}" for number in count())
VERSIONS = [3, 8, 9, 12]


@pytest.fixture
def client(moldau: Broker) -> Iterator[RawClient]:
    with RawClient(worker_ports(moldau)[0]) as made:
        yield made


@pytest.fixture
def topic(client: RawClient) -> str:
    name = next(_names)
    create_topic(client, name, partitions=2)
    return name


def batch_of(*values: bytes) -> bytearray:
    return make_batch([(None, value, 1_700_000_000_000) for value in values])


@pytest.mark.parametrize("version", VERSIONS)
def test_every_batch_gets_its_own_answer(client: RawClient, topic: str, version: int) -> None:
    offsets = []
    for number in range(6):
        values = [b"%d" % number] * (number + 1)
        answer = client.produce(topic, batch_of(*values), version=version)
        assert answer.error_code == 0
        offsets.append(answer.base_offset)
    assert offsets == [0, 1, 3, 6, 10, 15]
    found = [record.value for record in records_in(client.fetch(topic, 0))]
    assert found == [b"%d" % number for number in range(6) for _ in range(number + 1)]


def test_partitions_and_acks_are_not_mixed_up(client: RawClient, topic: str) -> None:
    for number in range(4):
        for partition in (0, 1):
            for acks in (1, -1):
                value = b"%d %d %d" % (partition, acks, number)
                answer = client.produce(topic, batch_of(value), partition=partition, acks=acks)
                assert (answer.index, answer.error_code) == (partition, 0)
    for partition in (0, 1):
        found = [r.value for r in records_in(client.fetch(topic, 0, partition=partition))]
        assert found == [
            b"%d %d %d" % (partition, acks, number) for number in range(4) for acks in (1, -1)
        ]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_bad_batch_among_good_ones_is_refused_alone(
    client: RawClient, topic: str, version: int
) -> None:
    good = batch_of(b"good")
    bad = batch_of(b"bad")
    bad[-1] ^= 1
    codes = [client.produce(topic, b, version=version).error_code for b in (good, good, bad, good)]
    assert codes == [0, 0, ErrorCode.CORRUPT_MESSAGE, 0]
    short = client.produce(topic, good[:30], version=version)
    assert short.error_code == ErrorCode.INVALID_RECORD
    assert client.produce(topic, good, version=version).base_offset == 3


def test_a_topic_deleted_and_created_again_begins_at_0(client: RawClient, topic: str) -> None:
    for _ in range(3):
        assert client.produce(topic, batch_of(b"old")).error_code == 0
    request = DeleteTopicsRequest(topics=[DeleteTopicState(topic)], timeout_ms=10_000)
    assert client.call(request).responses[0].error_code == 0
    refused = client.produce(topic, batch_of(b"nowhere"))
    assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    create_topic(client, topic)
    for number in range(3):
        answer = client.produce(topic, batch_of(b"new"))
        assert (answer.error_code, answer.base_offset) == (0, number)
    assert {record.value for record in records_in(client.fetch(topic, 0))} == {b"new"}


def test_a_changed_configuration_holds_for_the_next_request(client: RawClient, topic: str) -> None:
    big = batch_of(b"x" * 2_000)
    assert client.produce(topic, big).error_code == 0
    assert client.produce(topic, big).log_append_time_ms == -1
    alter_topic(client, topic, {"max.message.bytes": 1_000})
    assert client.produce(topic, big).error_code == ErrorCode.MESSAGE_TOO_LARGE
    alter_topic(client, topic, {"message.timestamp.type": "LogAppendTime"})
    assert client.produce(topic, batch_of(b"stamped")).log_append_time_ms > 0
    alter_topic(client, topic, {"min.insync.replicas": 2})
    assert client.produce(topic, batch_of(b"x")).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert client.produce(topic, batch_of(b"x"), acks=1).error_code == 0


def test_many_topics_on_one_connection(client: RawClient) -> None:
    """More than are remembered, with names of more lengths than are looked for."""
    names = [next(_names) + "-" + "n" * (number % 9) for number in range(80)]
    for name in names:
        create_topic(client, name)
    for turn in range(2):
        for name in names:
            answer = client.produce(name, batch_of(name.encode()))
            assert (answer.error_code, answer.base_offset) == (0, turn)
    for name in names:
        assert [r.value for r in records_in(client.fetch(name, 0))] == [name.encode()] * 2


@pytest.mark.parametrize("configs", [{}, {"moldau.storage": "native"}], ids=["log", "native"])
def test_what_follows_a_refused_batch_is_not_out_of_order(
    client: RawClient, configs: dict[str, str]
) -> None:
    """librdkafka would begin a new epoch, and send what is unanswered elsewhere as new records."""
    name = next(_names)
    create_topic(client, name, {**configs, "min.insync.replicas": 2})

    def send(sequence: int, acks: int = 1) -> int:
        batch = make_batch(
            [(None, b"%d" % sequence, 1_700_000_000_000)],
            producer_id=7,
            producer_epoch=0,
            base_sequence=sequence,
        )
        return client.produce(name, batch, acks=acks).error_code

    assert send(0) == 0
    assert send(1, acks=-1) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert send(2) == ErrorCode.KAFKA_STORAGE_ERROR
    assert [send(sequence) for sequence in (1, 2)] == [0, 0]
    assert send(4) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    found = [record.value for record in records_in(client.fetch(name, 0))]
    assert found == [b"0", b"1", b"2"]
