"""The table of APIs: key, versions, first flexible version, messages and routing.

Everything that has to know which APIs exist reads it here: ApiVersions, the dispatcher, the
router and the README's table (a test compares them). An API that is listed is served in full.
"""

from __future__ import annotations

from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from broker.wire.codegen.compiler import codec
from broker.wire.messages import (
    alter_configs,
    api_versions,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_topic_partitions,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sync_group,
)
from broker.wire.schema import Codec, Message

NEVER_FLEXIBLE = 1 << 15


class Routing(Enum):
    """Who answers a request that arrives at the front door."""

    LOCAL = "local"  # the router itself
    LEADER = "leader"  # any worker, by preference the partition's leader
    ANY = "any"  # any worker
    COORDINATOR = "coordinator"  # the worker that owns the group or transactional id
    COORDINATORS = "coordinators"  # the owners of the groups it names: split and merged
    EVERY = "every"  # all workers, their answers merged


class Api(NamedTuple):
    key: int
    name: str
    lowest: int
    highest: int
    flexible_from: int
    request: type[Message]
    response: type[Message]
    routing: Routing
    # Understood from here on, and refused with UNSUPPORTED_VERSION below `lowest` (see Produce).
    refused_from: int | None = None

    @property
    def advertised_from(self) -> int:
        return self.lowest if self.refused_from is None else self.refused_from

    def understands(self, version: int) -> bool:
        return self.advertised_from <= version <= self.highest

    def is_flexible(self, version: int) -> bool:
        return version >= self.flexible_from

    def request_codec(self, version: int) -> Codec:
        return codec(self.request, version, version >= self.flexible_from)

    def response_codec(self, version: int) -> Codec:
        return codec(self.response, version, version >= self.flexible_from)

    def response_header_has_tags(self, version: int) -> bool:
        # ApiVersions is read before the client knows what the broker speaks: always header v0.
        return version >= self.flexible_from and self.key != API_VERSIONS


API_VERSIONS = 18

_ROWS = (
    # Advertised from 0: older librdkafka turns compression off when it does not see 0-2. They
    # are answered with UNSUPPORTED_VERSION, as in Kafka 4.
    Api(0, "Produce", 3, 13, 9, produce.ProduceRequest, produce.ProduceResponse,
        Routing.LEADER, refused_from=0),
    Api(1, "Fetch", 4, 18, 12, fetch.FetchRequest, fetch.FetchResponse, Routing.LEADER),
    Api(2, "ListOffsets", 1, 11, 6, list_offsets.ListOffsetsRequest,
        list_offsets.ListOffsetsResponse, Routing.LEADER),
    Api(3, "Metadata", 0, 13, 9, metadata.MetadataRequest, metadata.MetadataResponse,
        Routing.ANY),
    Api(8, "OffsetCommit", 2, 10, 8, offset_commit.OffsetCommitRequest,
        offset_commit.OffsetCommitResponse, Routing.COORDINATOR),
    Api(9, "OffsetFetch", 1, 10, 6, offset_fetch.OffsetFetchRequest,
        offset_fetch.OffsetFetchResponse, Routing.COORDINATORS),
    Api(10, "FindCoordinator", 0, 6, 3, find_coordinator.FindCoordinatorRequest,
        find_coordinator.FindCoordinatorResponse, Routing.LOCAL),
    Api(11, "JoinGroup", 0, 9, 6, join_group.JoinGroupRequest, join_group.JoinGroupResponse,
        Routing.COORDINATOR),
    Api(12, "Heartbeat", 0, 4, 4, heartbeat.HeartbeatRequest, heartbeat.HeartbeatResponse,
        Routing.COORDINATOR),
    Api(13, "LeaveGroup", 0, 5, 4, leave_group.LeaveGroupRequest, leave_group.LeaveGroupResponse,
        Routing.COORDINATOR),
    Api(14, "SyncGroup", 0, 5, 4, sync_group.SyncGroupRequest, sync_group.SyncGroupResponse,
        Routing.COORDINATOR),
    Api(15, "DescribeGroups", 0, 6, 5, describe_groups.DescribeGroupsRequest,
        describe_groups.DescribeGroupsResponse, Routing.COORDINATORS),
    Api(16, "ListGroups", 0, 5, 3, list_groups.ListGroupsRequest, list_groups.ListGroupsResponse,
        Routing.EVERY),
    Api(API_VERSIONS, "ApiVersions", 0, 4, 3, api_versions.ApiVersionsRequest,
        api_versions.ApiVersionsResponse, Routing.LOCAL),
    Api(19, "CreateTopics", 2, 7, 5, create_topics.CreateTopicsRequest,
        create_topics.CreateTopicsResponse, Routing.ANY),
    Api(20, "DeleteTopics", 1, 6, 4, delete_topics.DeleteTopicsRequest,
        delete_topics.DeleteTopicsResponse, Routing.ANY),
    Api(21, "DeleteRecords", 0, 2, 2, delete_records.DeleteRecordsRequest,
        delete_records.DeleteRecordsResponse, Routing.LEADER),
    Api(22, "InitProducerId", 0, 5, 2, init_producer_id.InitProducerIdRequest,
        init_producer_id.InitProducerIdResponse, Routing.COORDINATOR),
    Api(23, "OffsetForLeaderEpoch", 2, 4, 4, offset_for_leader_epoch.OffsetForLeaderEpochRequest,
        offset_for_leader_epoch.OffsetForLeaderEpochResponse, Routing.LEADER),
    Api(29, "DescribeAcls", 1, 3, 2, describe_acls.DescribeAclsRequest,
        describe_acls.DescribeAclsResponse, Routing.ANY),
    Api(32, "DescribeConfigs", 1, 4, 4, describe_configs.DescribeConfigsRequest,
        describe_configs.DescribeConfigsResponse, Routing.ANY),
    Api(33, "AlterConfigs", 0, 2, 2, alter_configs.AlterConfigsRequest,
        alter_configs.AlterConfigsResponse, Routing.ANY),
    Api(35, "DescribeLogDirs", 1, 4, 2, describe_log_dirs.DescribeLogDirsRequest,
        describe_log_dirs.DescribeLogDirsResponse, Routing.ANY),
    Api(37, "CreatePartitions", 0, 3, 2, create_partitions.CreatePartitionsRequest,
        create_partitions.CreatePartitionsResponse, Routing.ANY),
    Api(42, "DeleteGroups", 0, 2, 2, delete_groups.DeleteGroupsRequest,
        delete_groups.DeleteGroupsResponse, Routing.COORDINATORS),
    Api(44, "IncrementalAlterConfigs", 0, 1, 1,
        incremental_alter_configs.IncrementalAlterConfigsRequest,
        incremental_alter_configs.IncrementalAlterConfigsResponse, Routing.ANY),
    Api(47, "OffsetDelete", 0, 0, NEVER_FLEXIBLE, offset_delete.OffsetDeleteRequest,
        offset_delete.OffsetDeleteResponse, Routing.COORDINATOR),
    Api(60, "DescribeCluster", 0, 2, 0, describe_cluster.DescribeClusterRequest,
        describe_cluster.DescribeClusterResponse, Routing.ANY),
    Api(75, "DescribeTopicPartitions", 0, 0, 0,
        describe_topic_partitions.DescribeTopicPartitionsRequest,
        describe_topic_partitions.DescribeTopicPartitionsResponse, Routing.ANY),
)  # fmt: skip

APIS: dict[int, Api] = {api.key: api for api in _ROWS}


@lru_cache(maxsize=512)
def lookup(key: int, version: int) -> Api | None:
    """The API, when this version of it can be answered."""
    api = APIS.get(key)
    return api if api is not None and api.understands(version) else None
