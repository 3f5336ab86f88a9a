"""Raw requests at the edges of the protocol, by what they are about.

Topics are named `golden-<case>...`, so that cases do not meet. A node that exists is asked for at
run time (`seen["node"]`), as clusters number theirs differently.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from broker.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from broker.wire.messages.api_versions import ApiVersionsRequest
from broker.wire.messages.create_acls import AclCreation, CreateAclsRequest
from broker.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from broker.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from broker.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from broker.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from broker.wire.messages.describe_acls import DescribeAclsRequest
from broker.wire.messages.describe_cluster import DescribeClusterRequest
from broker.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from broker.wire.messages.describe_groups import DescribeGroupsRequest
from broker.wire.messages.describe_quorum import DescribeQuorumRequest, PartitionData, TopicData
from broker.wire.messages.describe_topic_partitions import (
    CursorInRequest,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from broker.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from broker.wire.messages.find_coordinator import FindCoordinatorRequest
from broker.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from broker.wire.messages.init_producer_id import InitProducerIdRequest
from broker.wire.messages.list_config_resources import ListConfigResourcesRequest
from broker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from broker.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from broker.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from broker.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from broker.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tests.golden.batches import (
    garbage_gzip,
    garbage_lz4,
    garbage_snappy,
    garbage_zstd,
    good,
    keyless_of_three,
    miscounted,
    negative_delta,
    offsets_not_in_order,
    overrunning,
    trailing_bytes,
)
from tests.golden.harness import Case, Step, Values

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND = 0, 1, 2
MANY = 2000


def create(*names: str, partitions: int = 1, **configs: str) -> Step:
    """Topics to work on."""
    chosen = [CreatableTopicConfig(key.replace("_", "."), value) for key, value in configs.items()]
    topics = [CreatableTopic(name, partitions, 1, configs=chosen) for name in names]
    return Step(CreateTopicsRequest(topics=topics, timeout_ms=10_000), is_setup=True)


# --- topics ---


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
    ]
)

# --- configurations ---


def alter(*resources: AlterConfigsResource, validate_only: bool = False) -> Step:
    return Step(IncrementalAlterConfigsRequest(list(resources), validate_only))


def topic_set(name: str, *pairs: tuple[str, str]) -> AlterConfigsResource:
    return AlterConfigsResource(
        TOPIC, name, [AlterableConfig(key, SET, value) for key, value in pairs]
    )


def broker_set(seen: Values, *pairs: tuple[str, str]) -> IncrementalAlterConfigsRequest:
    configs = [AlterableConfig(key, SET, value) for key, value in pairs]
    return IncrementalAlterConfigsRequest(
        [AlterConfigsResource(BROKER, str(seen["node"]), configs)]
    )


INCREMENTAL_ALTER_CONFIGS = Case(
    [
        create("golden-ic-a", "golden-ic-b"),
        alter(
            topic_set("golden-ic-a", ("retention.ms", "1000")),
            topic_set("golden-ic-a", ("retention.ms", "2000")),
            topic_set("golden-ic-b", ("retention.ms", "3000")),
        ),
        alter(topic_set("golden-ic-a", ("retention.ms", "1000"), ("retention.ms", "2000"))),
        alter(topic_set("golden-ic-missing", ("retention.ms", "1000"))),
        alter(topic_set("bad name", ("retention.ms", "1000"))),
        alter(topic_set("golden-ic-a", ("no.such.key", "1"))),
        alter(topic_set("golden-ic-a", ("retention.ms", "soon"))),
        alter(
            AlterConfigsResource(
                TOPIC, "golden-ic-a", [AlterableConfig("cleanup.policy", APPEND, "compact")]
            )
        ),
        alter(
            AlterConfigsResource(
                TOPIC, "golden-ic-a", [AlterableConfig("retention.ms", APPEND, "1")]
            )
        ),
        alter(
            AlterConfigsResource(TOPIC, "golden-ic-a", [AlterableConfig("retention.ms", 9, "1")])
        ),
        alter(
            AlterConfigsResource(TOPIC, "golden-ic-a", [AlterableConfig("retention.ms", SET, None)])
        ),
        alter(AlterConfigsResource(99, "x", [])),
        alter(AlterConfigsResource(BROKER, "77", [AlterableConfig("log.retention.ms", SET, "1")])),
        alter(AlterConfigsResource(BROKER, "x", [AlterableConfig("log.retention.ms", SET, "1")])),
        Step(lambda seen: broker_set(seen, ("num.io.threads.no", "1"))),
        Step(lambda seen: broker_set(seen, ("node.id", "7"))),
        Step(lambda seen: broker_set(seen, ("broker.id", "7"))),
        Step(lambda seen: broker_set(seen, ("log.dirs", "/tmp/x"))),
        Step(lambda seen: broker_set(seen, ("auto.create.topics.enable", "false"))),
    ],
    differs={
        9: "INVALID_REQUEST; Kafka has no code for a null value",
        14: "an unknown key is INVALID_CONFIG; Kafka keeps keys for its plug-ins",
    },
)


def config_names(*resources: tuple[int, str], keys: list[str] | None = None) -> Step:
    wanted = [DescribeConfigsResource(kind, name, keys) for kind, name in resources]
    return Step(DescribeConfigsRequest(wanted))


DESCRIBE_CONFIGS = Case(
    [
        create("golden-dc-a"),
        config_names((TOPIC, "bad name")),
        config_names((TOPIC, "")),
        config_names((TOPIC, "golden-dc-missing")),
        config_names((TOPIC, "golden-dc-a"), (TOPIC, "golden-dc-a"), keys=["retention.ms"]),
        config_names((BROKER, "77")),
        config_names((BROKER, "x")),
        config_names((GROUP, "golden-group")),
        config_names((GROUP, "")),
        config_names((CLIENT_METRICS, "golden-metrics")),
        config_names((CLIENT_METRICS, "")),
        config_names((99, "x")),
        Step(ListConfigResourcesRequest(resource_types=[CLIENT_METRICS])),
        Step(ListConfigResourcesRequest(resource_types=[GROUP])),
        Step(ListConfigResourcesRequest(resource_types=[99])),
        Step(ListConfigResourcesRequest(), 0),
    ],
    differs={
        7: "groups have no configuration of their own yet",
        9: "client metrics are not collected",
    },
)

# --- records ---


def fetch_id(seen: Values) -> bytes:
    found: bytes = seen["ids"]["golden-p-a"]
    return found


def produce(
    name: str, *batches: bytes | bytearray | None, partition: int = 0, version: int = 12
) -> Step:
    data = [PartitionProduceData(partition, None if b is None else memoryview(b)) for b in batches]
    return Step(
        ProduceRequest(None, -1, 10_000, [TopicProduceData(name, partition_data=data)]), version
    )


def produce_to_unknown_partition(seen: Values) -> ProduceRequest:
    data = [PartitionProduceData(9, memoryview(good()))]
    return ProduceRequest(
        None, -1, 10_000, [TopicProduceData(topic_id=fetch_id(seen), partition_data=data)]
    )


def produce_to_unknown_id(seen: Values) -> ProduceRequest:
    data = [PartitionProduceData(0, memoryview(good()))]
    return ProduceRequest(
        None, -1, 10_000, [TopicProduceData(topic_id=b"\1" * 16, partition_data=data)]
    )


PRODUCE = Case(
    [
        create("golden-p-a"),
        Step(produce_to_unknown_partition, 13),
        Step(produce_to_unknown_id, 13),
        produce("golden-p-a", good(), partition=9),
        produce("golden-p-missing", good()),
        produce("golden-p-a", b""),
        produce("golden-p-a", good() + good()),
    ]
)

PRODUCE_UNREADABLE = Case(
    [
        create("golden-u-a"),
        produce("golden-u-a", garbage_gzip()),
        produce("golden-u-a", garbage_snappy()),
        produce("golden-u-a", garbage_lz4()),
        produce("golden-u-a", garbage_zstd()),
        produce("golden-u-a", miscounted(3)),
        produce("golden-u-a", miscounted(0)),
        produce("golden-u-a", trailing_bytes()),
        produce("golden-u-a", overrunning()),
        produce("golden-u-a", offsets_not_in_order()),
        produce("golden-u-a", negative_delta()),
        produce("golden-u-a", good()),
    ],
    differs={
        1: "INVALID_RECORD; in Kafka the codec fails with UNKNOWN_SERVER_ERROR",
        2: "likewise",
        3: "likewise",
        4: "likewise",
        9: "refused: two records would have one offset",
        10: "refused: a record would have the offset before its batch",
        11: "the two before are not in the log",
    },
)

PRODUCE_KEYLESS = Case(
    [
        create("golden-k-a", cleanup_policy="compact"),
        produce("golden-k-a", keyless_of_three()),
        produce("golden-k-a", good()),
    ]
)


def fetch(session_id: int, epoch: int, version: int = 12, *topics: FetchTopic) -> Step:
    request = FetchRequest(
        max_wait_ms=0, min_bytes=1, session_id=session_id, session_epoch=epoch, topics=list(topics)
    )
    return Step(request, version)


FETCH = Case(
    [
        create("golden-f-a"),
        fetch(0, 3),
        fetch(0, 0),
        fetch(0, -1),
        fetch(77, 3),
        fetch(77, -1),
        fetch(77, 0),
        fetch(
            0, -1, 12, FetchTopic("golden-f-a", partitions=[FetchPartition(0), FetchPartition(9)])
        ),
        fetch(0, -1, 12, FetchTopic("golden-f-missing", partitions=[FetchPartition(0)])),
        fetch(0, -1, 12, FetchTopic("golden-f-a", partitions=[FetchPartition(0, 5)])),
        fetch(0, -1, 12, FetchTopic("golden-f-a", partitions=[FetchPartition(0, fetch_offset=7)])),
        fetch(0, -1, 12, FetchTopic("golden-f-a", partitions=[FetchPartition(0, fetch_offset=-7)])),
    ],
    differs={
        7: "aborted transactions of a partition without an answer: null, not empty",
        8: "likewise",
    },
)


def list_offsets(*topics: tuple[str, list[tuple[int, int]]], version: int = 11) -> Step:
    wanted = [
        ListOffsetsTopic(
            name, [ListOffsetsPartition(at, timestamp=timestamp) for at, timestamp in partitions]
        )
        for name, partitions in topics
    ]
    return Step(ListOffsetsRequest(replica_id=-1, topics=wanted, timeout_ms=1000), version)


LIST_OFFSETS = Case(
    [
        create("golden-lo-a", partitions=2),
        list_offsets(("golden-lo-a", [(0, -1), (0, -2), (1, -1)])),
        list_offsets(("golden-lo-a", [(0, -1)]), ("golden-lo-a", [(1, -1)])),
        list_offsets(("golden-lo-a", [(0, -1)]), ("golden-lo-a", [(0, -1)])),
        list_offsets(("golden-lo-a", [(7, -1)])),
        list_offsets(("golden-lo-missing", [(0, -1)])),
        list_offsets(("golden-lo-a", [(0, -3), (1, -4)])),
        list_offsets(("golden-lo-a", [(0, -5), (1, -6)])),
        list_offsets(("golden-lo-a", [(0, -99)])),
    ]
)

INIT_PRODUCER_ID = Case(
    [
        Step(InitProducerIdRequest(None, 0, -1, 3)),
        Step(InitProducerIdRequest(None, 0, 5, -1)),
        Step(InitProducerIdRequest("", 0, -1, -1)),
    ]
)

# --- the cluster and its administration ---

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


def update(*features: tuple[str, int, int], validate_only: bool = True, version: int = 2) -> Step:
    keys = [FeatureUpdateKey(name, level, upgrade_type=kind) for name, level, kind in features]
    return Step(UpdateFeaturesRequest(10_000, keys, validate_only), version)


UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3

UPDATE_FEATURES = Case(
    [
        update(("no.such.feature", 1, UPGRADE)),
        update(("no.such.feature", 1, UPGRADE), version=1),
        update(("metadata.version", 999, UPGRADE)),
        update(("metadata.version", 999, UPGRADE), version=1),
        update(("metadata.version", 0, UPGRADE), version=1),
        update(("metadata.version", -1, UPGRADE), version=1),
        update(version=1),
        update(),
        update(("metadata.version", 7, 9), version=1),
    ]
)

CASES: dict[str, Case] = {
    name.lower(): value for name, value in list(globals().items()) if isinstance(value, Case)
}
