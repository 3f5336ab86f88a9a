"""Groups of the consumer protocol (KIP-848): heartbeats, epochs, what is shown of them.

Targets are computed at once (`consumer.assignment.interval.ms` 0), so that answers do not depend on
time.
"""

from __future__ import annotations

from typing import Any

from moldau.broker.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from moldau.broker.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from moldau.broker.wire.messages.describe_groups import DescribeGroupsRequest
from moldau.broker.wire.messages.find_coordinator import FindCoordinatorRequest
from moldau.broker.wire.messages.heartbeat import HeartbeatRequest
from moldau.broker.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau.broker.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from moldau.broker.wire.messages.list_groups import ListGroupsRequest
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
from tests.golden.harness import Case, Step, Values
from tests.golden.steps import create

GROUP, SET = 32, 0


def coordinator(group: str, topic: str) -> list[Step]:
    """Kafka makes the topic of its groups when it is first asked for one, and loads it."""
    return [
        Step(FindCoordinatorRequest(coordinator_keys=[group]), is_setup=True),
        fetch(group, None, -1, topic)._replace(is_setup=True),
    ]


def no_interval(group: str) -> Step:
    config = AlterableConfig("consumer.assignment.interval.ms", SET, "0")
    request = IncrementalAlterConfigsRequest([AlterConfigsResource(GROUP, group, [config])])
    return Step(request, is_setup=True)


def epoch_of(seen: Values, group: str, epoch: int) -> int:
    """Epochs of a group are counted from that of its first member."""
    base: int = seen["epochs"].get(group, 0)
    return epoch + base if epoch > 0 else epoch


def beat(
    group: str,
    member: str,
    epoch: int,
    *,
    version: int | None = None,
    owned: dict[str, list[int]] | None = None,
    **fields: Any,
) -> Step:
    """A heartbeat; what it owns by topic."""

    def request(seen: Values) -> ConsumerGroupHeartbeatRequest:
        given = (
            None
            if owned is None
            else [TopicPartitions(seen["ids"][name], numbers) for name, numbers in owned.items()]
        )
        return ConsumerGroupHeartbeatRequest(
            group, member, epoch_of(seen, group, epoch), topic_partitions=given, **fields
        )

    return Step(request, version)


def join(group: str, member: str, *topics: str, **fields: Any) -> Step:
    fields.setdefault("rebalance_timeout_ms", 60_000)
    fields.setdefault("subscribed_topic_names", list(topics))
    return beat(group, member, 0, owned={}, **fields)


def describe(*groups: str) -> Step:
    return Step(ConsumerGroupDescribeRequest(list(groups)))


def commit(group: str, member: str, epoch: int, *, version: int = 9, topic: str) -> Step:
    def request(seen: Values) -> OffsetCommitRequest:
        partition = OffsetCommitRequestPartition(0, 5)
        named = OffsetCommitRequestTopic(topic, partitions=[partition])
        return OffsetCommitRequest(group, epoch_of(seen, group, epoch), member, topics=[named])

    return Step(request, version)


def fetch(group: str, member: str | None, epoch: int, topic: str) -> Step:
    def request(seen: Values) -> OffsetFetchRequest:
        topics = [OffsetFetchRequestTopics(topic, partition_indexes=[0])]
        wanted = OffsetFetchRequestGroup(group, member, epoch_of(seen, group, epoch), topics)
        return OffsetFetchRequest(groups=[wanted])

    return Step(request, 9)


HEARTBEAT_REFUSED = Case(
    [
        create("golden-ch-a"),
        *coordinator("golden-ch", "golden-ch-a"),
        join("", "m", "golden-ch-a"),
        join("golden-ch", "", "golden-ch-a"),
        beat("golden-ch", "", 1, version=0),
        beat("golden-ch", "", -1, version=0),
        join("golden-ch", "m", "golden-ch-a", instance_id=""),
        join("golden-ch", "m", "golden-ch-a", rack_id=""),
        beat("golden-ch", "m", -3),
        beat("golden-ch", "m", -2),
        join("golden-ch", "m", "golden-ch-a", rebalance_timeout_ms=-1),
        join("golden-ch", "m", "golden-ch-a", subscribed_topic_names=None),
        beat(
            "golden-ch",
            "m",
            0,
            rebalance_timeout_ms=1,
            subscribed_topic_names=["golden-ch-a"],
            owned={"golden-ch-a": [0]},
        ),
        beat("golden-ch", "m", 0, rebalance_timeout_ms=1, subscribed_topic_names=["golden-ch-a"]),
        join("golden-ch", "m", "golden-ch-a", server_assignor="fair"),
        join("golden-ch", "m", subscribed_topic_regex="("),
        beat("golden-ch-none", "m", 1),
        beat("golden-ch-none", "m", -1),
    ],
)

HEARTBEAT_EPOCHS = Case(
    [
        create("golden-ce-a", "golden-ce-b"),
        *coordinator("golden-ce", "golden-ce-a"),
        no_interval("golden-ce"),
        join("golden-ce", "m", "golden-ce-a"),
        beat("golden-ce", "m", 1),
        beat("golden-ce", "m", 1, owned={"golden-ce-a": [0]}),
        beat(
            "golden-ce",
            "m",
            1,
            owned={"golden-ce-a": [0]},
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=["golden-ce-a"],
        ),
        beat("golden-ce", "m", 2),
        beat("golden-ce", "n", 1),
        join("golden-ce", "m", "golden-ce-a"),
        beat("golden-ce", "m", 1, subscribed_topic_names=["golden-ce-a", "golden-ce-b"]),
        beat("golden-ce", "m", 2, owned={"golden-ce-a": [0], "golden-ce-b": [0]}),
        beat("golden-ce", "m", 1, owned={"golden-ce-a": [0]}),
        beat("golden-ce", "m", 1),
        describe("golden-ce", "golden-ce-none"),
        beat("golden-ce", "m", -1),
        beat("golden-ce", "m", 2),
        describe("golden-ce"),
    ],
    differs_in={
        13: ("assignment", "who comes in an earlier epoch has missed what it was assigned")
    },
)

HEARTBEAT_RECONCILES = Case(
    [
        create("golden-cr-a", "golden-cr-b"),
        *coordinator("golden-cr", "golden-cr-a"),
        no_interval("golden-cr"),
        join("golden-cr", "m", "golden-cr-a", "golden-cr-b"),
        beat("golden-cr", "m", 1, owned={"golden-cr-a": [0], "golden-cr-b": [0]}),
        join("golden-cr", "n", "golden-cr-b"),
        beat("golden-cr", "m", 1),
        beat("golden-cr", "m", 1, owned={"golden-cr-a": [0], "golden-cr-b": [0]}),
        beat("golden-cr", "n", 2),
        describe("golden-cr"),
        beat("golden-cr", "m", 1, owned={"golden-cr-a": [0]}),
        beat("golden-cr", "n", 2),
        describe("golden-cr"),
        beat("golden-cr", "n", -1),
        beat("golden-cr", "m", 2),
        beat("golden-cr", "m", -1),
    ]
)

HEARTBEAT_STATIC = Case(
    [
        create("golden-cs-a"),
        *coordinator("golden-cs", "golden-cs-a"),
        no_interval("golden-cs"),
        join("golden-cs", "m", "golden-cs-a", instance_id="i"),
        join("golden-cs", "n", "golden-cs-a", instance_id="i"),
        beat("golden-cs", "n", 1, instance_id="i"),
        beat("golden-cs", "n", 1, instance_id="j"),
        beat("golden-cs", "n", -1, instance_id="i"),
        beat("golden-cs", "n", -1, instance_id="j"),
        beat("golden-cs", "m", -2, instance_id="i"),
        describe("golden-cs"),
        join("golden-cs", "n", "golden-cs-a", instance_id="i"),
        beat("golden-cs", "m", 1, instance_id="i"),
        beat("golden-cs", "n", 1, instance_id="i"),
        describe("golden-cs"),
        beat("golden-cs", "n", -1, instance_id="i"),
    ]
)

CONSUMER_OFFSETS = Case(
    [
        create("golden-co-a"),
        *coordinator("golden-co", "golden-co-a"),
        no_interval("golden-co"),
        join("golden-co", "m", "golden-co-a"),
        commit("golden-co", "m", 1, topic="golden-co-a"),
        commit("golden-co", "m", 1, version=8, topic="golden-co-a"),
        commit("golden-co", "m", 2, topic="golden-co-a"),
        commit("golden-co", "n", 1, topic="golden-co-a"),
        commit("golden-co", "", -1, topic="golden-co-a"),
        fetch("golden-co", None, -1, "golden-co-a"),
        fetch("golden-co", "m", 1, "golden-co-a"),
        fetch("golden-co", "m", 2, "golden-co-a"),
        fetch("golden-co", "n", 1, "golden-co-a"),
        Step(DescribeGroupsRequest(["golden-co"])),
        Step(DescribeGroupsRequest(["golden-co"]), 5),
        Step(ListGroupsRequest(types_filter=["Consumer"], states_filter=["STABLE"])),
        Step(HeartbeatRequest("golden-co", 1, "m")),
        Step(
            JoinGroupRequest(
                "golden-co",
                session_timeout_ms=10_000,
                rebalance_timeout_ms=10_000,
                protocol_type="connect",
                protocols=[JoinGroupRequestProtocol("x", b"")],
            )
        ),
        beat("golden-co", "m", -1),
        commit("golden-co", "", -1, topic="golden-co-a"),
    ]
)

GROUP_CONFIGS = Case(
    [
        Step(
            IncrementalAlterConfigsRequest(
                [
                    AlterConfigsResource(
                        GROUP,
                        name,
                        [AlterableConfig(key, SET, value)],
                    )
                ]
            )
        )
        for name, key, value in (
            ("golden-gx", "consumer.heartbeat.interval.ms", "6000"),
            ("golden-gx", "consumer.heartbeat.interval.ms", "1"),
            ("golden-gx", "consumer.session.timeout.ms", "70000"),
            ("golden-gx", "consumer.session.timeout.ms", "soon"),
            ("golden-gx", "no.such.key", "1"),
            ("", "consumer.heartbeat.interval.ms", "6000"),
        )
    ]
)
