"""Offsets on the wire: what handlers and versions add to commit, fetch and delete.

Behaviours are numbered as `2_<number>`; most of them are tested on the state machine itself.
"""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from moldau.broker.wire.apis import APIS
from moldau.broker.wire.messages.delete_groups import DeleteGroupsRequest
from moldau.broker.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.broker.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from moldau.broker.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from moldau.broker.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from tests.support.brokers.running import Broker, wait_until
from tests.support.raw.calls import create_topic
from tests.support.raw.group import (
    NOT_COORDINATOR,
    RawMember,
    coordinator_port,
    fetch_offsets,
)

UNKNOWN_TOPIC = 3
METADATA_TOO_LARGE, ILLEGAL_GENERATION, UNKNOWN_MEMBER = 12, 22, 25
NON_EMPTY, NOT_FOUND, SUBSCRIBED = 68, 69, 86
COMMIT, OFFSET_FETCH = 8, 9


def versions(key: int) -> range:
    return range(APIS[key].lowest, APIS[key].highest + 1)


@pytest.mark.parametrize("version", versions(COMMIT))
def test_2_21_every_version_commits(member: RawMember, topic: str, version: int) -> None:
    (found,) = member.call(MetadataRequest([MetadataRequestTopic(name=topic)])).topics
    member.enter()
    long = "x" * 4097
    items = [
        OffsetCommitRequestPartition(0, 10, 5, "note"),
        OffsetCommitRequestPartition(1, 11, -1, long),
        OffsetCommitRequestPartition(7, 12),
    ]
    topics = [OffsetCommitRequestTopic(topic, found.topic_id, items)]
    request = OffsetCommitRequest(
        member.group, member.generation, member.member_id, None, -1, topics
    )

    answer = member.call(request, version)

    codes = [item.error_code for item in answer.topics[0].partitions]
    assert codes == [0, METADATA_TOO_LARGE, UNKNOWN_TOPIC]
    assert fetch_offsets(member, member.group, {topic: [0, 1]}) == {(topic, 0): 10, (topic, 1): -1}


def test_2_21_who_may_commit(moldau: Broker, member: RawMember, topic: str) -> None:
    member.generation = 0
    assert member.commit(topic, 1) == NOT_FOUND
    assert member.commit(topic, 1, version=8) == ILLEGAL_GENERATION
    member.generation = -1
    assert member.commit(topic, 1) == 0  # a simple consumer
    member.enter()
    assert member.commit(topic, 2) == 0
    with RawMember(coordinator_port(moldau, member.group), member.group) as simple:
        assert simple.commit(topic, 1) == UNKNOWN_MEMBER
    member.generation -= 1
    assert member.commit(topic, 3) == ILLEGAL_GENERATION
    assert member.commit("no-such-topic", 3) == ILLEGAL_GENERATION
    assert member.committed(topic) == 2


@pytest.mark.parametrize("version", versions(OFFSET_FETCH))
def test_2_22_every_version_gives_back_what_was_committed(
    member: RawMember, topic: str, version: int
) -> None:
    (found,) = member.call(MetadataRequest([MetadataRequestTopic(name=topic)])).topics
    member.commit(topic, 42, metadata="ž note", leader_epoch=7)

    asked = OffsetFetchRequestTopics(topic, found.topic_id, [0, 2])
    request = OffsetFetchRequest(
        group_id=member.group,
        topics=[OffsetFetchRequestTopic(topic, [0, 2])],
        groups=[OffsetFetchRequestGroup(member.group, topics=[asked])],
    )
    answer = member.call(request, version)

    (answered,) = answer.groups[0].topics if version >= 8 else answer.topics
    first, second = answered.partitions
    assert (first.committed_offset, first.metadata, first.error_code) == (42, "ž note", 0)
    assert first.committed_leader_epoch == (7 if version >= 5 else -1)
    assert (second.committed_offset, second.metadata, second.error_code) == (-1, "", 0)


@pytest.mark.parametrize("version", range(2, APIS[OFFSET_FETCH].highest + 1))
def test_2_22_all_topics(member: RawMember, topic: str, version: int) -> None:
    for partition in (0, 1):
        member.commit(topic, 5, partition=partition)
    request = OffsetFetchRequest(
        group_id=member.group,
        topics=None,
        groups=[OffsetFetchRequestGroup(member.group, topics=None)],
    )

    answer = member.call(request, version)

    (answered,) = answer.groups[0].topics if version >= 8 else answer.topics
    assert sorted(item.partition_index for item in answered.partitions) == [0, 1]


def test_2_22_several_groups_each_with_its_own_error(
    moldau: Broker, member: RawMember, topic: str
) -> None:
    member.commit(topic, 9)
    names = [f"g-{number}" for number in range(50)]
    foreign = next(
        name
        for name in names
        if coordinator_port(moldau, name) != coordinator_port(moldau, member.group)
    )
    unknown = next(name for name in names if coordinator_port(moldau, name) == member.port)
    asked = [OffsetFetchRequestTopics(topic, partition_indexes=[0])]
    request = OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(name, topics=asked) for name in (member.group, foreign, unknown)
        ]
    )

    own, other, nothing = member.call(request, 9).groups

    assert own.error_code == 0
    assert own.topics[0].partitions[0].committed_offset == 9
    assert (other.group_id, other.error_code, other.topics) == (foreign, NOT_COORDINATOR, [])
    assert nothing.error_code == 0
    assert nothing.topics[0].partitions[0].committed_offset == -1


def test_2_22_an_error_is_at_the_top_from_v2_on(moldau: Broker, member: RawMember) -> None:
    foreign = next(
        name
        for name in (f"g-{number}" for number in range(50))
        if coordinator_port(moldau, name) != member.port
    )
    request = OffsetFetchRequest(foreign, [OffsetFetchRequestTopic("any", [0])])

    first = member.call(request, 1)
    assert [item.error_code for item in first.topics[0].partitions] == [NOT_COORDINATOR]
    for version in range(2, 8):
        answer = member.call(request, version)
        assert (answer.error_code, answer.topics) == (NOT_COORDINATOR, [])


def test_2_23_what_can_be_deleted(member: RawMember, topic: str) -> None:
    def delete() -> int:
        (result,) = member.call(DeleteGroupsRequest([member.group])).results
        return int(result.error_code)

    assert delete() == NOT_FOUND
    member.protocol_type = "connect"
    member.enter()
    member.commit(topic, 3)
    assert delete() == NON_EMPTY
    assert delete_offset(member, topic).error_code == NON_EMPTY
    assert member.leave() == 0
    assert delete() == 0
    assert delete() == NOT_FOUND
    assert member.committed(topic) == -1


def delete_offset(member: RawMember, *topics: str) -> Any:
    asked = [
        OffsetDeleteRequestTopic(name, [OffsetDeleteRequestPartition(index) for index in (0, 7)])
        for name in topics
    ]
    return member.call(OffsetDeleteRequest(member.group, asked))


def test_2_23_offsets_of_subscribed_topics_stay(member: RawMember, topic: str) -> None:
    other = f"topic-{uuid.uuid4().hex[:12]}"
    create_topic(member, other)
    assert delete_offset(member, topic).error_code == NOT_FOUND
    name = topic.encode()
    # ConsumerProtocolSubscription v0: version, topics, user data.
    subscription = b"\0\0\0\0\0\1" + len(name).to_bytes(2, "big") + name + b"\xff\xff\xff\xff"
    member.protocols = {"range": subscription}
    member.enter()
    for name_ in (topic, other):
        assert member.commit(name_, 3) == 0

    answer = delete_offset(member, topic, other)

    codes = [[item.error_code for item in found.partitions] for found in answer.topics]
    assert answer.error_code == 0
    assert codes == [[SUBSCRIBED, UNKNOWN_TOPIC], [0, UNKNOWN_TOPIC]]
    assert (member.committed(topic), member.committed(other)) == (3, -1)


def test_2_25_offsets_of_a_deleted_topic_go(member: RawMember, topic: str) -> None:
    assert member.commit(topic, 3) == 0

    member.call(DeleteTopicsRequest(topics=[DeleteTopicState(topic)]))

    wait_until(lambda: member.committed(topic) == -1, 30, "the offset is gone")
    assert member.commit(topic, 4) == UNKNOWN_TOPIC
