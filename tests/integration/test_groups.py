"""Consumer groups on the wire: what handlers and versions add to the state machine.

Behaviours are numbered as `2_<number>`; most of them are tested on the state machine itself.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from broker.wire.apis import APIS
from broker.wire.messages.delete_groups import DeleteGroupsRequest
from broker.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from broker.wire.messages.describe_groups import DescribeGroupsRequest
from broker.wire.messages.find_coordinator import FindCoordinatorRequest
from broker.wire.messages.heartbeat import HeartbeatRequest
from broker.wire.messages.join_group import JoinGroupRequest
from broker.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from broker.wire.messages.list_groups import ListGroupsRequest
from broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from broker.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from broker.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from broker.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from broker.wire.messages.sync_group import SyncGroupRequest
from tests.support.raw_calls import create_topic
from tests.support.raw_group import (
    NOT_AVAILABLE,
    NOT_COORDINATOR,
    RawMember,
    coordinator_port,
    fetch_offsets,
    form_group,
)
from tests.support.running import Broker, remove_dir, short_temp_dir, wait_until

UNKNOWN_TOPIC, INVALID_REQUEST, UNKNOWN_TOPIC_ID = 3, 42, 100
METADATA_TOO_LARGE, ILLEGAL_GENERATION, INVALID_GROUP_ID, UNKNOWN_MEMBER = 12, 22, 24, 25
REBALANCING, NON_EMPTY, NOT_FOUND, MEMBER_ID_REQUIRED, SUBSCRIBED = 27, 68, 69, 79, 86
JOIN, HEARTBEAT, LEAVE, SYNC, COMMIT, OFFSET_FETCH, DESCRIBE = 11, 12, 13, 14, 8, 9, 15


def versions(key: int) -> range:
    return range(APIS[key].lowest, APIS[key].highest + 1)


@pytest.fixture(scope="module")
def moldau() -> Iterator[Broker]:
    """Two workers that do not wait long for more members."""
    directory = short_temp_dir()
    broker = Broker.start(directory, broker={"group.initial.rebalance.delay.ms": 50})
    yield broker
    code = broker.stop()
    log = broker.log()
    remove_dir(directory)
    assert code == 0, log
    assert "Traceback" not in log, log


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def member(moldau: Broker, group: str) -> Iterator[RawMember]:
    with RawMember(coordinator_port(moldau, group), group) as member:
        yield member


@pytest.fixture
def topic(member: RawMember) -> str:
    name = f"topic-{uuid.uuid4().hex[:12]}"
    create_topic(member, name, partitions=3)
    return name


# --- join, sync, heartbeat, leave ---


@pytest.mark.parametrize("version", versions(JOIN))
def test_2_05_every_version_joins(member: RawMember, version: int) -> None:
    answer = member.join(version)

    assert (answer.error_code, answer.generation_id) == (0, 1)
    assert answer.protocol_name == "range"
    assert answer.protocol_type == ("consumer" if version >= 7 else None)
    assert answer.leader == answer.member_id == answer.members[0].member_id
    assert bytes(answer.members[0].metadata) == b"topics"


@pytest.mark.parametrize("version", versions(JOIN))
def test_2_05_no_protocol_is_an_empty_name_below_v7(member: RawMember, version: int) -> None:
    member.session_ms = 1  # refused: no protocol is chosen

    member.send_join(version)

    assert member.receive_join().protocol_name == (None if version >= 7 else "")


def test_2_05_v0_waits_for_others_as_long_as_a_session(moldau: Broker, member: RawMember) -> None:
    member.session_ms, member.rebalance_ms = 6_000, 600_000  # the latter is not in v0
    member.join(0)
    member.sync({member.member_id: b""})
    with RawMember(coordinator_port(moldau, member.group), member.group) as other:
        other.session_ms = other.rebalance_ms = 6_000
        other.join()
        # The first never joined again: it is given up after its session timeout.
        assert other.joined.error_code == 0
        assert [item.member_id for item in other.joined.members] == [other.member_id]


@pytest.mark.parametrize("version", versions(JOIN))
def test_2_06_who_is_told_its_id_first(member: RawMember, version: int) -> None:
    member.send_join(version)
    answer = member.receive_join()

    assert answer.error_code == (MEMBER_ID_REQUIRED if version >= 4 else 0)
    client, _, rest = answer.member_id.partition("-")
    assert (client, str(uuid.UUID(rest))) == ("raw", rest)


@pytest.mark.parametrize("version", range(5, 10))
def test_2_06_a_static_member_is_never_asked(member: RawMember, version: int) -> None:
    member.instance = "shop"
    member.send_join(version)
    answer = member.receive_join()

    assert answer.error_code == 0
    assert answer.member_id.startswith("shop-")
    assert answer.members[0].group_instance_id == "shop"


def test_2_07_the_default_delay(start_moldau: Callable[..., Broker], group: str) -> None:
    broker = start_moldau(workers=1)
    with RawMember(broker.port + 1, group) as member:
        began = time.monotonic()
        member.enter()
        first = time.monotonic() - began
        assert first >= 3.0  # whoever is there
        began = time.monotonic()
        member.enter()
        assert time.monotonic() - began < first  # nobody waits once there is a group


def test_2_01_no_group_id(member: RawMember) -> None:
    answers = [
        member.call(JoinGroupRequest()),
        member.call(SyncGroupRequest()),
        member.call(HeartbeatRequest()),
        member.call(LeaveGroupRequest()),
    ]

    assert [answer.error_code for answer in answers] == [INVALID_GROUP_ID] * 4


@pytest.mark.parametrize("version", versions(SYNC))
def test_2_14_every_version_syncs(member: RawMember, version: int) -> None:
    member.join()

    answer = member.sync({member.member_id: b"yours"}, version)

    assert (answer.error_code, bytes(answer.assignment)) == (0, b"yours")
    assert answer.protocol_type == ("consumer" if version >= 5 else None)
    assert answer.protocol_name == ("range" if version >= 5 else None)


@pytest.mark.parametrize("version", versions(HEARTBEAT))
def test_2_18_every_version_heartbeats(member: RawMember, version: int) -> None:
    assert member.heartbeat(version) == UNKNOWN_MEMBER
    member.enter()
    assert member.heartbeat(version) == 0
    member.generation += 1
    assert member.heartbeat(version) == ILLEGAL_GENERATION


@pytest.mark.parametrize("version", versions(LEAVE))
def test_2_20_errors_at_the_top_or_at_the_member(member: RawMember, version: int) -> None:
    def leave(name: str) -> tuple[int, list[int]]:
        request = LeaveGroupRequest(member.group, name, [MemberIdentity(name)])
        answer = member.call(request, version)
        return answer.error_code, [item.error_code for item in answer.members]

    unknown = (UNKNOWN_MEMBER, []) if version < 3 else (0, [UNKNOWN_MEMBER])
    assert leave("nobody") == unknown  # an unknown group
    member.enter()
    assert leave("nobody") == unknown  # an unknown member
    assert leave(member.member_id) == (0, [] if version < 3 else [0])
    assert member.heartbeat() == UNKNOWN_MEMBER


def test_2_20_an_administrator_removes_by_instance(member: RawMember) -> None:
    member.instance = "shop"
    member.enter()
    removal = [MemberIdentity("", "shop"), MemberIdentity("", "other")]

    answer = member.call(LeaveGroupRequest(group_id=member.group, members=removal))

    found = [(item.group_instance_id, item.error_code) for item in answer.members]
    assert (answer.error_code, found) == (0, [("shop", 0), ("other", UNKNOWN_MEMBER)])
    assert member.heartbeat() == UNKNOWN_MEMBER


def test_2_04_other_protocol_types_pass_untouched(moldau: Broker, group: str) -> None:
    port = coordinator_port(moldau, group)
    blob = bytes(range(256))
    settings = {"protocol_type": "connect", "protocols": {"sessioned": blob, "compatible": b""}}
    with RawMember(port, group, **settings) as one, RawMember(port, group, **settings) as two:  # type: ignore[arg-type]
        form_group([one, two])

        leader = one if one.joined.leader == one.member_id else two
        assert [bytes(item.metadata) for item in leader.joined.members] == [blob, blob]
        (described,) = one.call(DescribeGroupsRequest([group])).groups
        assert (described.protocol_type, described.protocol_data) == ("connect", "sessioned")
        assert {bytes(item.member_assignment) for item in described.members} == {b"0", b"1"}


# --- offsets ---


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

    (told,) = answer.groups[0].topics if version >= 8 else answer.topics
    first, second = told.partitions
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

    (told,) = answer.groups[0].topics if version >= 8 else answer.topics
    assert sorted(item.partition_index for item in told.partitions) == [0, 1]


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

    wait_until(lambda: member.committed(topic) == -1, 10, "the offset is gone")
    assert member.commit(topic, 4) == UNKNOWN_TOPIC


# --- looking at groups ---


@pytest.mark.parametrize("version", versions(DESCRIBE))
def test_2_24_describe(member: RawMember, version: int) -> None:
    def describe() -> Any:
        return member.call(DescribeGroupsRequest([member.group]), version).groups[0]

    unknown = describe()
    assert (unknown.group_state, unknown.error_code) == ("Dead", NOT_FOUND if version >= 6 else 0)
    member.join()
    (forming,) = describe().members
    assert describe().group_state == "CompletingRebalance"
    assert (bytes(forming.member_metadata), bytes(forming.member_assignment)) == (b"", b"")
    member.sync({member.member_id: b"mine"})

    stable = describe()
    assert (stable.error_code, stable.group_state) == (0, "Stable")
    assert (stable.protocol_type, stable.protocol_data) == ("consumer", "range")
    (found,) = stable.members
    assert (found.member_id, found.client_id) == (member.member_id, "raw")
    assert "127.0.0.1" in found.client_host
    assert bytes(found.member_metadata) == b"topics"
    assert bytes(found.member_assignment) == b"mine"


def test_2_24_list(moldau: Broker, member: RawMember, topic: str) -> None:
    simple = next(
        name
        for name in (f"simple-{uuid.uuid4().hex[:8]}" for _ in range(100))
        if coordinator_port(moldau, name) == member.port
    )
    member.enter()
    with RawMember(member.port, simple) as other:
        other.commit(topic, 1)

    def listed(version: int, states: list[str] = [], types: list[str] = []) -> dict[str, Any]:  # noqa: B006
        answer = member.call(ListGroupsRequest(states, types), version)
        assert answer.error_code == 0
        return {item.group_id: item for item in answer.groups}

    for version in range(6):
        found = listed(version)
        assert (found[member.group].protocol_type, found[simple].protocol_type) == ("consumer", "")
        if version >= 4:
            assert (found[member.group].group_state, found[simple].group_state) == (
                "Stable",
                "Empty",
            )
        if version >= 5:
            assert found[member.group].group_type == "classic"
    assert member.group in listed(4, ["sTABLE"])
    assert simple not in listed(4, ["stable"])
    assert simple in listed(5, ["Empty"], ["CLASSIC"])
    assert not listed(5, [], ["consumer"])


@pytest.mark.parametrize("version", range(7))
def test_2_28_find_coordinator(moldau: Broker, member: RawMember, version: int) -> None:
    def ask(key_type: int, *keys: str) -> list[Any]:
        request = FindCoordinatorRequest(keys[0], key_type, list(keys))
        answer = member.call(request, version)
        return answer.coordinators if version >= 4 else [answer]

    keys = [f"group-{number}" for number in range(8)]
    found = ask(0, *keys)
    assert len(found) == (len(keys) if version >= 4 else 1)
    for key, item in zip(keys, found, strict=False):
        assert item.error_code == 0
        # Kafka's own hash: each of them answers for what it was named for.
        with RawMember(item.port, key) as other:
            assert other.heartbeat() == UNKNOWN_MEMBER
        wrong = moldau.port + 1 if item.port == moldau.port + 2 else moldau.port + 2
        with RawMember(wrong, key) as other:
            assert other.heartbeat() == NOT_COORDINATOR
            assert other.join().error_code == NOT_COORDINATOR
    if version >= 1:
        (refused,) = ask(9, "key")
        assert (refused.error_code, refused.node_id) == (INVALID_REQUEST, -1)


# --- a store that takes nothing ---


def test_2_16_2_21_a_full_store_acknowledges_nothing(
    start_moldau: Callable[..., Broker], group: str
) -> None:
    broker = start_moldau(workers=1, broker={"group.initial.rebalance.delay.ms": 0})
    topic = "orders"
    with RawMember(broker.port + 1, group) as member, redis.Redis.from_url(broker.store_url) as db:
        create_topic(member, topic)
        member.enter()
        assert member.commit(topic, 5) == 0
        db.config_set("maxmemory", 1)
        try:
            assert member.commit(topic, 6) == NOT_AVAILABLE
            assert member.committed(topic) == 5
            assert member.heartbeat() == 0  # heartbeats write nothing
            assert member.join().error_code == 0
            assert member.sync({member.member_id: b"new"}).error_code == NOT_AVAILABLE
            assert member.heartbeat() == REBALANCING
        finally:
            db.config_set("maxmemory", 0)
        generation = member.generation
        assert member.enter(b"newer").error_code == 0
        assert member.generation > generation
        assert member.commit(topic, 7) == 0
        assert member.committed(topic) == 7
