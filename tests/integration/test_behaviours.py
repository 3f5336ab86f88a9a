"""What breaks first in compatible brokers (section 6), and the rest of Produce's rules (4.2), seen
from outside: one test per behaviour, by its number. Those with tests of their own elsewhere carry
their numbers there.
"""

import time
from collections.abc import Iterator
from itertools import count

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.messages.describe_acls import DescribeAclsRequest
from moldau.broker.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from moldau.broker.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from moldau.broker.wire.messages.init_producer_id import InitProducerIdRequest
from moldau.broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tests.support.brokers.running import Broker, wait_until
from tests.support.proofs.hammer import worker_ports
from tests.support.raw.calls import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    create_topic,
    delete_records,
    list_offset,
)
from tests.support.raw.client import NAMED_PRODUCE, RawClient, make_batch, records_in

_names = (f"behaviour-{number}" for number in count())


@pytest.fixture
def client(moldau: Broker) -> Iterator[RawClient]:
    with RawClient(worker_ports(moldau)[0]) as connected:
        yield connected


@pytest.fixture
def topic(client: RawClient) -> str:
    name = next(_names)
    create_topic(client, name)
    return name


def request(topic: str, acks: int, *values: bytes) -> ProduceRequest:
    batch = memoryview(make_batch([(None, value, 1) for value in values]))
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(0, batch)])
    return ProduceRequest(acks=acks, timeout_ms=5_000, topic_data=[data])


# --- 4.2 ---


def test_4_2_acks_0_is_not_answered(client: RawClient, topic: str) -> None:
    for number in range(20):
        client.send(request(topic, 0, b"%d" % number), NAMED_PRODUCE)
    client.send(MetadataRequest(topics=[]))
    assert client.receive().brokers  # the first answer there is
    wait_until(lambda: client.fetch(topic, 0).high_watermark == 20, 30, "all are appended")
    values = [record.value for record in records_in(client.fetch(topic, 0))]
    assert values == [b"%d" % number for number in range(20)]


def test_4_2_acks_0_with_an_error_closes_the_connection(moldau: Broker, topic: str) -> None:
    with RawClient(worker_ports(moldau)[0]) as own:
        own.send(request("no-such-topic", 0, b"x"), NAMED_PRODUCE)
        own.must_be_closed()


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_4_2_other_acks_are_refused(client: RawClient, topic: str, acks: int) -> None:
    answer = client.call(request(topic, acks, b"x"), NAMED_PRODUCE)
    (partition,) = answer.responses[0].partition_responses
    assert partition.error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert client.fetch(topic, 0).high_watermark == 0


def test_4_2_one_bad_partition_does_not_spoil_the_others(client: RawClient) -> None:
    name = next(_names)
    create_topic(client, name, partitions=3)
    good = memoryview(make_batch([(None, b"x", 1)]))
    bad = memoryview(make_batch([(None, b"x", 1)]))
    bad[-1] ^= 1
    parts = [PartitionProduceData(0, good), PartitionProduceData(1, bad)]
    parts += [PartitionProduceData(2, memoryview(bytearray(good))), PartitionProduceData(9, good)]
    data = [TopicProduceData(name=name, partition_data=parts)]
    wanted = ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=data)
    answers = client.call(wanted, NAMED_PRODUCE).responses[0].partition_responses
    assert [answer.error_code for answer in answers] == [
        0,
        ErrorCode.CORRUPT_MESSAGE,
        0,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert "checksum" in answers[1].error_message


# --- 6 ---


def test_6_1_the_ready_line_names_the_advertised_addresses(
    moldau: Broker, client: RawClient
) -> None:
    advertised = [
        f"{node.host}:{node.port}" for node in client.call(MetadataRequest(topics=[])).brokers
    ]
    assert f"brokers={','.join(advertised)}" in moldau.ready_line
    assert advertised == [f"127.0.0.1:{port}" for port in worker_ports(moldau)]


def test_6_2_a_producer_id_for_everybody_who_asks(moldau: Broker) -> None:
    seen: set[int] = set()
    for port in worker_ports(moldau):
        with RawClient(port) as own:
            for version in range(6):
                answer = own.call(InitProducerIdRequest(transactional_id=None), version)
                assert (answer.error_code, answer.producer_epoch) == (0, 0)
                seen.add(answer.producer_id)
    assert len(seen) == 6 * len(worker_ports(moldau))
    assert min(seen) >= 0


def test_6_3_the_apis_that_user_interfaces_ask_for(client: RawClient, topic: str) -> None:
    (answer,) = client.call(DescribeLogDirsRequest(topics=None)).results
    assert answer.error_code == 0
    assert 0 < answer.usable_bytes < answer.total_bytes  # KIP-827
    resources = [
        DescribeConfigsResource(TOPIC_RESOURCE, topic, None),
        DescribeConfigsResource(BROKER_RESOURCE, "0", None),
    ]
    wanted = DescribeConfigsRequest(resources, include_synonyms=True, include_documentation=True)
    for described in client.call(wanted).results:
        assert described.error_code == 0
        keys = {config.name: config for config in described.configs}
        assert len(keys) > 25
        for config in keys.values():
            assert config.config_type > 0, config.name
            assert config.documentation, config.name
            assert config.config_source > 0, config.name
    acls = client.call(DescribeAclsRequest(resource_type_filter=2, pattern_type_filter=3))
    assert acls.error_code == ErrorCode.SECURITY_DISABLED


def test_6_4_offsets_by_timestamp(client: RawClient, topic: str) -> None:
    now = time.time_ns() // 1_000_000
    for second in range(5):
        records = [(None, b"x", now + second * 1_000 + extra) for extra in range(3)]
        assert client.produce(topic, make_batch(records)).error_code == 0
    assert list_offset(client, topic, now).offset == 0
    assert list_offset(client, topic, now + 2_001).offset == 7
    assert list_offset(client, topic, now + 2_003).offset == 9
    assert list_offset(client, topic, now + 99_000).offset == -1


def test_6_4_metadata_creates_topics(client: RawClient) -> None:
    name = next(_names)
    unasked = MetadataRequest([MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
    assert client.call(unasked).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    asked = MetadataRequest([MetadataRequestTopic(name=name)])
    wait_until(lambda: client.call(asked).topics[0].error_code == 0, 30, "it is there")
    assert client.produce(name, make_batch([(None, b"x", 1)])).error_code == 0


def test_6_6_max_message_bytes_is_enforced(client: RawClient) -> None:
    name = next(_names)
    create_topic(client, name, {"max.message.bytes": 1_000})
    assert client.produce(name, make_batch([(None, b"x" * 800, 1)])).error_code == 0
    answer = client.produce(name, make_batch([(None, b"x" * 1_000, 1)]))
    assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE


def test_6_6_keyless_records_on_a_compacted_topic(client: RawClient) -> None:
    name = next(_names)
    create_topic(client, name, {"cleanup.policy": "compact"})
    answer = client.produce(name, make_batch([(None, b"x", 1)]))
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert client.produce(name, make_batch([(b"key", b"x", 1)])).error_code == 0


def test_6_8_connect_streams_and_spark_find_what_they_look_for(client: RawClient) -> None:
    name = next(_names)
    create_topic(client, name, {"cleanup.policy": "compact"}, partitions=2)
    resource = DescribeConfigsResource(TOPIC_RESOURCE, name, ["cleanup.policy"])
    (described,) = client.call(DescribeConfigsRequest([resource])).results
    assert [config.value for config in described.configs] == ["compact"]

    repartition = next(_names)
    create_topic(client, repartition)
    client.produce(repartition, make_batch([(b"k", b"v", 1)] * 5))
    assert delete_records(client, repartition, -1).low_watermark == 5

    metadata = client.call(MetadataRequest([MetadataRequestTopic(name=name)])).topics[0]
    assert sorted(part.partition_index for part in metadata.partitions) == [0, 1]
    assert list_offset(client, repartition, -2).offset == 5
    assert list_offset(client, repartition, -1).offset == 5
