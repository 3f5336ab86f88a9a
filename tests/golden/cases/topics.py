"""Topics: described, created, extended, deleted."""

from __future__ import annotations

from collections.abc import Sequence

from moldau.broker.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from moldau.broker.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from moldau.broker.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.broker.wire.messages.describe_topic_partitions import (
    CursorInRequest,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from moldau.broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.golden.harness import Case, Step, Values
from tests.golden.steps import create

MANY = 2000


def describe(
    names: Sequence[str], limit: int = MANY, cursor: tuple[str, int] | None = None
) -> Step:
    return Step(
        DescribeTopicPartitionsRequest(
            [TopicRequest(name) for name in names],
            limit,
            None if cursor is None else CursorInRequest(*cursor),
        )
    )


ABC = ["golden-dtp-a", "golden-dtp-b", "golden-dtp-c"]

DESCRIBE_TOPIC_PARTITIONS = Case(
    [
        create(*ABC, partitions=3),
        describe(ABC, 4),
        describe(ABC, 4, ("golden-dtp-b", 1)),
        describe(["golden-dtp-a", "golden-dtp-c"], 2, ("golden-dtp-b", 1)),
        describe(["golden-dtp-missing", *ABC], 2),
        describe(["golden-dtp-c", "golden-dtp-a", "golden-dtp-a"], 9),
        describe(ABC, 3, ("golden-dtp-a", 9)),
        Step(
            DeleteTopicsRequest([DeleteTopicState("golden-dtp-b")], timeout_ms=10_000),
            is_setup=True,
        ),
        describe(ABC, 4, ("golden-dtp-b", 1)),
        describe(["bad name"], 4),
        describe(["golden-dtp-a"], 1, ("golden-dtp-z", 0)),
    ]
)

DESCRIBE_TOPIC_PARTITIONS_LIMITS = Case(
    [
        create("golden-dtl-a", partitions=3),
        describe(["golden-dtl-a"], 0),
        describe(["golden-dtl-a"], -1),
        describe(["golden-dtl-a"], 2, ("golden-dtl-a", -1)),
        describe(["golden-dtl-a"], 2, ("golden-dtl-a", -5)),
    ]
)


def grow(*topics: CreatePartitionsTopic) -> Step:
    return Step(CreatePartitionsRequest(list(topics), 10_000))


def placed(*replicas: list[int]) -> list[CreatePartitionsAssignment]:
    return [CreatePartitionsAssignment(each) for each in replicas]


CREATE_PARTITIONS = Case(
    [
        create("golden-cp-a", "golden-cp-b", partitions=2),
        grow(
            CreatePartitionsTopic("golden-cp-a", 3, None),
            CreatePartitionsTopic("golden-cp-a", 4, None),
            CreatePartitionsTopic("golden-cp-b", 3, None),
        ),
        grow(CreatePartitionsTopic("golden-cp-a", 4, placed([]))),
        grow(CreatePartitionsTopic("golden-cp-a", 4, placed([1, 1]))),
        grow(CreatePartitionsTopic("golden-cp-a", 4, placed([77]))),
        grow(CreatePartitionsTopic("golden-cp-a", 4, placed([-1]))),
        grow(CreatePartitionsTopic("golden-cp-missing", 4, placed([1]))),
        grow(CreatePartitionsTopic("golden-cp-missing", 4, None)),
        grow(CreatePartitionsTopic("golden-cp-a", 9, placed([1]))),
        grow(CreatePartitionsTopic("golden-cp-a", 1, None)),
        grow(CreatePartitionsTopic("golden-cp-a", 2, None)),
        grow(CreatePartitionsTopic("golden-cp-a", 0, None)),
        grow(CreatePartitionsTopic("golden-cp-a", -1, None)),
        grow(CreatePartitionsTopic("golden-cp-a", 3, [])),
        grow(CreatePartitionsTopic("bad name", 3, None)),
        grow(),
        Step(MetadataRequest([MetadataRequestTopic(name="golden-cp-a")], False)),
    ]
)


def make(*topics: CreatableTopic, validate_only: bool = False) -> Step:
    return Step(CreateTopicsRequest(list(topics), 10_000, validate_only))


def assigned(*replicas: list[int], first: int = 0) -> list[CreatableReplicaAssignment]:
    return [CreatableReplicaAssignment(first + at, each) for at, each in enumerate(replicas)]


CREATE_TOPICS = Case(
    [
        make(CreatableTopic("golden-ct-a", -1, -1, assigned([1, 1]))),
        make(CreatableTopic("golden-ct-a", -1, -1, assigned([1], [1, 2]))),
        make(CreatableTopic("golden-ct-a", -1, -1, assigned([]))),
        make(CreatableTopic("golden-ct-a", -1, -1, assigned([77]))),
        make(CreatableTopic("golden-ct-a", -1, -1, assigned([1], first=1))),
        make(
            CreatableTopic(
                "golden-ct-a",
                -1,
                -1,
                [CreatableReplicaAssignment(0, [1]), CreatableReplicaAssignment(0, [1])],
            )
        ),
        make(CreatableTopic("golden-ct-a", 3, -1, assigned([1]))),
        make(CreatableTopic("golden-ct-a", -1, 1, assigned([1]))),
        make(CreatableTopic("golden-ct-a", 1, 3)),
        make(CreatableTopic("golden-ct-a", 1, 0)),
        make(CreatableTopic("golden-ct-a", 1, -2)),
        make(CreatableTopic("golden-ct-a", 0, 1)),
        make(CreatableTopic("golden-ct-a", -2, 1)),
        make(CreatableTopic("golden-ct-d", 1, 1), CreatableTopic("golden-ct-d", 2, 1)),
        make(CreatableTopic("bad name", 1, 1)),
        make(CreatableTopic("", 1, 1)),
        make(CreatableTopic(".", 1, 1)),
        make(CreatableTopic("x" * 250, 1, 1)),
    ],
    differs={
        8: "a replication factor is accepted as it comes: copies are the store's affair",
    },
)


def delete(*names: str, version: int | None = None) -> Step:
    if version is not None and version < 6:
        return Step(DeleteTopicsRequest(topic_names=list(names), timeout_ms=10_000), version)
    return Step(DeleteTopicsRequest([DeleteTopicState(name) for name in names], timeout_ms=10_000))


def delete_by_name_and_id(seen: Values) -> DeleteTopicsRequest:
    one = seen["ids"]["golden-dt-c"]
    return DeleteTopicsRequest(
        [DeleteTopicState("golden-dt-c"), DeleteTopicState(None, one)], timeout_ms=10_000
    )


def delete_with_both(seen: Values) -> DeleteTopicsRequest:
    one = seen["ids"]["golden-dt-c"]
    return DeleteTopicsRequest([DeleteTopicState("golden-dt-c", one)], timeout_ms=10_000)


DELETE_TOPICS = Case(
    [
        create("golden-dt-a", "golden-dt-b", "golden-dt-c"),
        delete("golden-dt-a", "golden-dt-a", "golden-dt-b"),
        delete("golden-dt-a", "golden-dt-b", version=5),
        Step(delete_by_name_and_id),
        Step(delete_with_both),
        Step(DeleteTopicsRequest([DeleteTopicState(None, b"\1" * 16)], timeout_ms=10_000)),
        Step(DeleteTopicsRequest([DeleteTopicState(None)], timeout_ms=10_000)),
        delete("bad name"),
    ]
)

METADATA = Case(
    [
        create("golden-md-a"),
        Step(
            MetadataRequest(
                [
                    MetadataRequestTopic(name="golden-md-a"),
                    MetadataRequestTopic(name="golden-md-a"),
                ],
                False,
            )
        ),
        Step(
            MetadataRequest(
                [MetadataRequestTopic(name="bad name"), MetadataRequestTopic(name="bad name")], True
            )
        ),
        Step(
            MetadataRequest(
                [MetadataRequestTopic(name="golden-md-a")],
                False,
                include_topic_authorized_operations=True,
            )
        ),
        Step(MetadataRequest([MetadataRequestTopic(name="golden-md-missing")], False)),
        Step(MetadataRequest([MetadataRequestTopic(name="__transaction_state")], True)),
        Step(MetadataRequest([MetadataRequestTopic(b"\1" * 16, None)], False)),
        Step(
            MetadataRequest(
                [MetadataRequestTopic(name="golden-md-a")],
                False,
                include_cluster_authorized_operations=True,
            ),
            10,
        ),
    ],
    differs_in={5: ("error_code", "Kafka creates it; here it never exists, which is final")},
)
