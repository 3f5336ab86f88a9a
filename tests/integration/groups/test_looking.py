"""Groups on the wire as others see them, and with a store that takes nothing.

Behaviours are numbered as `2_<number>`; most of them are tested on the state machine itself.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
import redis

from moldau.broker.wire.apis import APIS
from moldau.broker.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from moldau.broker.wire.messages.delete_groups import DeleteGroupsRequest
from moldau.broker.wire.messages.describe_groups import DescribeGroupsRequest
from moldau.broker.wire.messages.find_coordinator import FindCoordinatorRequest
from moldau.broker.wire.messages.list_groups import ListGroupsRequest
from moldau.broker.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tests.support.brokers.moldau_cli import Cli
from tests.support.brokers.running import Broker
from tests.support.raw.calls import create_topic
from tests.support.raw.group import (
    NOT_AVAILABLE,
    NOT_COORDINATOR,
    RawMember,
    coordinator_port,
)

INVALID_GROUP_ID, INVALID_REQUEST = 24, 42
UNKNOWN_MEMBER = 25
REBALANCING, NOT_FOUND = 27, 69
DESCRIBE = 15


def versions(key: int) -> range:
    return range(APIS[key].lowest, APIS[key].highest + 1)


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
    assert member.group not in listed(5, [], ["consumer"])


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


def test_2_01_offsets_without_a_group_id_are_found_listed_described_and_deleted(
    moldau: Broker, topic: str
) -> None:
    """Apache Kafka 4.3 does the same. Tools look up every group that is listed."""
    with RawMember(coordinator_port(moldau, ""), "") as simple:
        assert simple.commit(topic, 5) == 0
        assert simple.committed(topic) == 5
        listed = {group.group_id for group in simple.call(ListGroupsRequest()).groups}
        assert "" in listed
        (described,) = simple.call(DescribeGroupsRequest([""])).groups
        assert (described.error_code, described.group_state) == (0, "Empty")
        (modern,) = simple.call(ConsumerGroupDescribeRequest([""])).groups
        assert (modern.error_code, modern.error_message) == (INVALID_GROUP_ID, None)
        place = OffsetDeleteRequestTopic(topic, [OffsetDeleteRequestPartition(0)])
        assert simple.call(OffsetDeleteRequest("", [place])).error_code == INVALID_GROUP_ID
        assert simple.committed(topic) == 5

        cli = Cli(moldau)
        assert "" in {group["group"] for group in cli.json("groups", "list")["groups"]}
        (shown,) = cli.json("groups", "describe", "")["groups"]
        assert [one["committed_offset"] for one in shown["partitions"]] == [5]
        (deleted,) = simple.call(DeleteGroupsRequest([""])).results
        assert deleted.error_code == 0
        assert simple.committed(topic) == -1
        (again,) = simple.call(DeleteGroupsRequest([""])).results
        assert again.error_code == NOT_FOUND
