"""Groups of the consumer protocol over the wire: what real clients hide."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import redis

from moldau.broker.errors import ErrorCode
from moldau.broker.placement import slot_of
from moldau.broker.store import keys
from moldau.broker.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from moldau.broker.wire.messages.delete_groups import DeleteGroupsRequest
from moldau.broker.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.broker.wire.messages.describe_groups import DescribeGroupsRequest
from moldau.broker.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from moldau.broker.wire.messages.list_groups import ListGroupsRequest
from moldau.broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.broker.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from moldau.broker.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from tests.support.brokers.running import Broker, running_broker, wait_until
from tests.support.raw.calls import create_topic
from tests.support.raw.client import RawClient
from tests.support.raw.consumers import RawConsumer
from tests.support.raw.group import coordinator_port


def topic_id(client: RawClient, name: str) -> bytes:
    (found,) = client.call(MetadataRequest([MetadataRequestTopic(name=name)])).topics
    assert found.error_code == 0
    return bytes(found.topic_id)


@pytest.mark.parametrize("version", [2, 5])
def test_8_32_an_administrator_empties_and_deletes_a_group(
    moldau: Broker, group: str, version: int
) -> None:
    port = coordinator_port(moldau, group)
    with RawConsumer(port, group) as member, RawClient(port) as admin:
        create_topic(admin, f"t-{group}")
        assert member.join(f"t-{group}").error_code == 0
        leaving = [MemberIdentity(member.member_id)]
        request = LeaveGroupRequest(group, member.member_id, leaving)

        answer = admin.call(request, version)

        codes = [answer.error_code, *(one.error_code for one in answer.members)]
        assert codes == ([0] if version < 3 else [0, 0])
        assert member.beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID
        (deleted,) = admin.call(DeleteGroupsRequest([group])).results
        assert deleted.error_code == 0


def test_8_14_8_19_a_partition_moves_and_rest_writes_nothing(moldau: Broker, group: str) -> None:
    topic = f"t-{group}"
    port = coordinator_port(moldau, group)
    with ExitStack() as stack:
        client = stack.enter_context(RawClient(moldau.port))
        create_topic(client, topic, partitions=4)
        one, two = (stack.enter_context(RawConsumer(port, group)) for _ in range(2))
        assert one.join(topic).member_epoch == 1
        assert len(one.places) == 4
        two.join(topic)

        def shared() -> bool:
            one.tell()
            two.tell()
            return len(one.places) == len(two.places) == 2

        wait_until(shared, 30, "both have two partitions")
        assert not one.places & two.places
        wait_until(lambda: one.tell().member_epoch == two.beat().member_epoch, 30, "they rest")
        with redis.Redis.from_url(moldau.store_url) as store:
            key = keys.group(slot_of(group), group).decode()
            revision = store.hget(key, "revision")
            for _ in range(50):
                for member in (one, two):
                    assert member.beat().error_code == 0
            assert store.hget(key, "revision") == revision
        (described,) = client.call(ConsumerGroupDescribeRequest([group])).groups
        assert (described.group_state, described.group_epoch) == ("Stable", 2)
        assert two.leave().member_epoch == -1
        wait_until(lambda: one.tell() and len(one.places) == 4, 30, "all came back")
        one.leave()


def test_8_28_offsets_by_topic_id(moldau: Broker, group: str) -> None:
    topic = f"t-{group}"
    with (
        RawClient(moldau.port) as client,
        RawConsumer(coordinator_port(moldau, group), group) as member,
    ):
        create_topic(client, topic)
        first = topic_id(client, topic)
        member.join(topic)

        def commit(which: bytes) -> int:
            named = OffsetCommitRequestTopic(
                topic_id=which, partitions=[OffsetCommitRequestPartition(0, 7)]
            )
            request = OffsetCommitRequest(group, member.epoch, member.member_id, topics=[named])
            (answered,) = member.call(request, 10).topics
            return int(answered.partitions[0].error_code)

        def fetched(which: bytes) -> tuple[int, int]:
            wanted = OffsetFetchRequestTopics(topic_id=which, partition_indexes=[0])
            request = OffsetFetchRequest(
                groups=[OffsetFetchRequestGroup(group, member.member_id, member.epoch, [wanted])]
            )
            (answered,) = member.call(request, 10).groups
            assert answered.error_code == 0
            partition = answered.topics[0].partitions[0]
            return partition.error_code, partition.committed_offset

        assert commit(first) == ErrorCode.NONE
        assert fetched(first) == (ErrorCode.NONE, 7)
        assert commit(bytes(15) + b"x") == ErrorCode.UNKNOWN_TOPIC_ID
        assert fetched(bytes(15) + b"x")[0] == ErrorCode.UNKNOWN_TOPIC_ID
        client.call(DeleteTopicsRequest([DeleteTopicState(topic)]))
        create_topic(client, topic)
        second = topic_id(client, topic)
        assert second != first
        wait_until(lambda: fetched(second) == (0, -1), 30, "the new topic has no offsets")
        assert fetched(first)[0] == ErrorCode.UNKNOWN_TOPIC_ID
        member.leave()


def test_8_33_described_and_listed(moldau: Broker, group: str) -> None:
    topic = f"t-{group}"
    with (
        RawClient(moldau.port) as client,
        RawConsumer(coordinator_port(moldau, group), group) as member,
    ):
        create_topic(client, topic)
        member.join(topic)
        (shown,) = client.call(DescribeGroupsRequest([group]), 5).groups
        assert (shown.error_code, shown.group_state) == (0, "Dead")
        (shown,) = client.call(DescribeGroupsRequest([group]), 6).groups
        assert shown.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        for types, found in ((["CONSUMER"], True), (["classic"], False), (["odd"], False)):
            listed = client.call(ListGroupsRequest(types_filter=types)).groups
            assert (group in {one.group_id for one in listed}) == found
        unknown, known = client.call(ConsumerGroupDescribeRequest(["nope", group])).groups
        assert unknown.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert [one.member_id for one in known.members] == [member.member_id]
        member.leave()


def test_8_3_switched_off_as_in_kafka(group: str) -> None:
    off = {"group.coordinator.rebalance.protocols": "classic"}
    with (
        running_broker(workers=1, broker=off) as broker,
        RawConsumer(coordinator_port(broker, group), group) as member,
    ):
        assert member.join("t").error_code == ErrorCode.UNSUPPORTED_VERSION
