"""The cluster and its administration: versions, ACLs, assignments, leaders, features."""

from __future__ import annotations

from moldau.broker.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from moldau.broker.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from moldau.broker.wire.messages.api_versions import ApiVersionsRequest
from moldau.broker.wire.messages.create_acls import AclCreation, CreateAclsRequest
from moldau.broker.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from moldau.broker.wire.messages.describe_acls import DescribeAclsRequest
from moldau.broker.wire.messages.describe_cluster import DescribeClusterRequest
from moldau.broker.wire.messages.describe_groups import DescribeGroupsRequest
from moldau.broker.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    PartitionData,
    TopicData,
)
from moldau.broker.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from moldau.broker.wire.messages.find_coordinator import FindCoordinatorRequest
from moldau.broker.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from moldau.broker.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from moldau.broker.wire.messages.unregister_broker import UnregisterBrokerRequest
from moldau.broker.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tests.golden.harness import Case, Step, Values
from tests.golden.steps import create

TOPIC = 2


API_VERSIONS = Case(
    [
        Step(ApiVersionsRequest("not valid!", "1.0")),
        Step(ApiVersionsRequest("valid", "not valid!")),
        Step(ApiVersionsRequest("", "")),
    ]
)

AUTHORIZED_OPERATIONS = Case(
    [
        create("golden-ao-a"),
        Step(FindCoordinatorRequest(key_type=0, coordinator_keys=["golden-group"]), is_setup=True),
        Step(
            OffsetCommitRequest(
                "golden-group",
                topics=[
                    OffsetCommitRequestTopic(
                        "golden-ao-a", partitions=[OffsetCommitRequestPartition(0, 0)]
                    )
                ],
            ),
            9,
            is_setup=True,
        ),
        Step(DescribeGroupsRequest(["golden-group"], include_authorized_operations=True)),
        Step(DescribeGroupsRequest(["golden-group"])),
        Step(DescribeClusterRequest(include_cluster_authorized_operations=True)),
        Step(DescribeClusterRequest()),
        Step(DescribeGroupsRequest(["golden-none"], include_authorized_operations=True)),
        Step(DescribeGroupsRequest(["golden-none"], include_authorized_operations=True), 5),
    ]
)

ACLS = Case(
    [
        Step(DescribeAclsRequest(1, None, 1, None, None, 1, 1)),
        Step(CreateAclsRequest([AclCreation(TOPIC, "x", 3, "User:a", "*", 3, 3)] * 2)),
        Step(DeleteAclsRequest([DeleteAclsFilter(TOPIC, "x", 3, "User:a", "*", 3, 3)] * 2)),
    ]
)


def reassign(name: str, partition: int, replicas: list[int] | None) -> Step:
    topic = ReassignableTopic(name, [ReassignablePartition(partition, replicas)])
    return Step(AlterPartitionReassignmentsRequest(10_000, True, [topic]))


def reassign_to_itself(seen: Values) -> AlterPartitionReassignmentsRequest:
    partition = ReassignablePartition(0, [seen["leaders"]["golden-pr-a"]])
    return AlterPartitionReassignmentsRequest(
        10_000, True, [ReassignableTopic("golden-pr-a", [partition])]
    )


REASSIGNMENTS = Case(
    [
        create("golden-pr-a"),
        Step(ListPartitionReassignmentsRequest()),
        Step(
            ListPartitionReassignmentsRequest(
                topics=[ListPartitionReassignmentsTopics("golden-pr-a", [0, 9])]
            )
        ),
        Step(
            ListPartitionReassignmentsRequest(
                topics=[ListPartitionReassignmentsTopics("golden-pr-missing", [0])]
            )
        ),
        reassign("golden-pr-a", 0, None),
        reassign("golden-pr-a", 9, None),
        reassign("golden-pr-a", 9, [1]),
        reassign("golden-pr-missing", 0, [1]),
        reassign("golden-pr-a", 0, []),
        reassign("golden-pr-a", 0, [77]),
        reassign("golden-pr-a", 0, [1, 1]),
        reassign("golden-pr-a", 0, [-1]),
        Step(reassign_to_itself),
        Step(AlterPartitionReassignmentsRequest(10_000, True, [])),
    ]
)


def elect(kind: int, topics: list[TopicPartitions] | None, version: int = 2) -> Step:
    return Step(ElectLeadersRequest(kind, topics, 10_000), version)


PREFERRED, UNCLEAN = 0, 1

ELECT_LEADERS = Case(
    [
        create("golden-el-a"),
        elect(PREFERRED, [TopicPartitions("golden-el-a", [0, 9])]),
        elect(UNCLEAN, [TopicPartitions("golden-el-a", [0])]),
        elect(PREFERRED, [TopicPartitions("golden-el-missing", [0])]),
        elect(9, [TopicPartitions("golden-el-a", [0])]),
        elect(PREFERRED, [TopicPartitions("golden-el-a", [0])], 0),
    ]
)


def move(path: str, name: str, partition: int) -> Step:
    directory = AlterReplicaLogDir(path, [AlterReplicaLogDirTopic(name, [partition])])
    return Step(AlterReplicaLogDirsRequest([directory]))


ALTER_REPLICA_LOG_DIRS = Case(
    [
        create("golden-ld-a"),
        move("/nowhere", "golden-ld-a", 0),
        move("relative", "golden-ld-a", 0),
        move("/nowhere", "golden-ld-missing", 0),
        move("/nowhere", "golden-ld-a", 9),
        Step(AlterReplicaLogDirsRequest([])),
    ]
)


def quorum(*topics: tuple[str, int], version: int = 2) -> Step:
    wanted = [TopicData(name, [PartitionData(at)]) for name, at in topics]
    return Step(DescribeQuorumRequest(wanted), version)


DESCRIBE_QUORUM = Case(
    [
        quorum(("__cluster_metadata", 1)),
        quorum(("golden-q", 0)),
        quorum(),
    ]
)


def update(*features: tuple[str, int, int], validate_only: bool = True, version: int = 1) -> Step:
    keys = [FeatureUpdateKey(name, level, upgrade_type=kind) for name, level, kind in features]
    return Step(UpdateFeaturesRequest(10_000, keys, validate_only), version)


UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3

UPDATE_FEATURES = Case(
    [
        update(("no.such.feature", 1, UPGRADE)),
        update(("metadata.version", 999, UPGRADE)),
        update(("metadata.version", 0, UPGRADE)),
        update(("metadata.version", -1, UPGRADE)),
        update(),
        update(("metadata.version", 7, 9)),
        update(("no.such.feature", 0, UNSAFE_DOWNGRADE)),
        update(("metadata.version", 30, UPGRADE)),
    ]
)

UNREGISTER_BROKER = Case(
    [
        Step(UnregisterBrokerRequest(77)),
        Step(UnregisterBrokerRequest(-1)),
    ]
)
