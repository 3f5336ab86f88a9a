"""The denial table: for every API, what a client needs, and what it gets without.

A case is a request in one version, the places of its response where the code of a denial stands,
and the ACLs that are enough, none of which is superfluous. `places` is a path through the
response; lists on the way are followed to all of their elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from moldau.broker.security.resources import CLUSTER_NAME, Operation, ResourceType
from moldau.broker.wire.apis import ApiKey
from moldau.broker.wire.messages import alter_configs as altering
from moldau.broker.wire.messages import describe_producers as producers
from moldau.broker.wire.messages import describe_quorum as quorum
from moldau.broker.wire.messages import describe_topic_partitions as topic_partitions
from moldau.broker.wire.messages import incremental_alter_configs as incremental
from moldau.broker.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from moldau.broker.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from moldau.broker.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityData,
    EntryRequest,
)
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
from moldau.broker.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
)
from moldau.broker.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from moldau.broker.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from moldau.broker.wire.messages.create_acls import AclCreation, CreateAclsRequest
from moldau.broker.wire.messages.create_delegation_token import CreateDelegationTokenRequest
from moldau.broker.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from moldau.broker.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from moldau.broker.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from moldau.broker.wire.messages.delete_groups import DeleteGroupsRequest
from moldau.broker.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from moldau.broker.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.broker.wire.messages.describe_acls import DescribeAclsRequest
from moldau.broker.wire.messages.describe_client_quotas import DescribeClientQuotasRequest
from moldau.broker.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from moldau.broker.wire.messages.describe_delegation_token import DescribeDelegationTokenRequest
from moldau.broker.wire.messages.describe_groups import DescribeGroupsRequest
from moldau.broker.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from moldau.broker.wire.messages.describe_transactions import DescribeTransactionsRequest
from moldau.broker.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from moldau.broker.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from moldau.broker.wire.messages.end_txn import EndTxnRequest
from moldau.broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.broker.wire.messages.find_coordinator import FindCoordinatorRequest
from moldau.broker.wire.messages.heartbeat import HeartbeatRequest
from moldau.broker.wire.messages.init_producer_id import InitProducerIdRequest
from moldau.broker.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from moldau.broker.wire.messages.leave_group import LeaveGroupRequest
from moldau.broker.wire.messages.list_config_resources import ListConfigResourcesRequest
from moldau.broker.wire.messages.list_groups import ListGroupsRequest
from moldau.broker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from moldau.broker.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
)
from moldau.broker.wire.messages.list_transactions import ListTransactionsRequest
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
from moldau.broker.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from moldau.broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from moldau.broker.wire.messages.sync_group import SyncGroupRequest
from moldau.broker.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from moldau.broker.wire.messages.unregister_broker import UnregisterBrokerRequest
from moldau.broker.wire.messages.update_features import UpdateFeaturesRequest
from moldau.broker.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from moldau.broker.wire.schema import Message
from tests.support.raw.client import make_batch

# Nobody has to be allowed anything for these.
FREE = {
    ApiKey.API_VERSIONS,
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE,
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,  # off in that test: see test_telemetry.py
    ApiKey.PUSH_TELEMETRY,
    ApiKey.RENEW_DELEGATION_TOKEN,  # owners and renewers: see test_delegation_tokens.py
    ApiKey.EXPIRE_DELEGATION_TOKEN,
    ApiKey.DESCRIBE_CLUSTER,  # but for what the client may do: see test_authorized_operations.py
}

TOPIC_DENIED, GROUP_DENIED, CLUSTER_DENIED, TXN_DENIED, TOKEN_DENIED = 29, 30, 31, 53, 65
DENIALS = {TOPIC_DENIED, GROUP_DENIED, CLUSTER_DENIED, TXN_DENIED, TOKEN_DENIED}

ANY = 1  # in filters of ACLs
CONFIG_TOPIC, CONFIG_BROKER, CONFIG_GROUP = 2, 4, 32
CONFIG_LOGGERS = 8


class Names(NamedTuple):
    """What a case is about. The topic, the group and the transactional id exist; `new` does not."""

    topic: str
    topic_id: bytes
    group: str
    txn: str
    new: str
    token: str = ""  # the id of one that belongs to `owner`, for cases that describe tokens

    @property
    def owner(self) -> str:
        return f"User:{self.topic}"


class Need(NamedTuple):
    operation: Operation
    resource: ResourceType
    name: str  # a field of `Names`, or the cluster's name


class Case(NamedTuple):
    api: ApiKey
    version: int
    what: str  # tells the cases of an API from one another
    request: Callable[[Names], Message]
    places: str
    denied: int | None  # None: what is not allowed is left out
    needs: tuple[Need, ...]

    @property
    def id(self) -> str:
        return f"{self.api.name}-v{self.version}{'-' if self.what else ''}{self.what}"

    def is_allowed(self, response: Any, names: Names) -> bool:
        values = found(response, self.places)
        if self.denied is None and any(isinstance(value, str) for value in values):
            return bool({names.topic, names.group, names.txn} & set(values))
        return bool(values) and not DENIALS & set(values)


def found(response: Any, places: str) -> list[Any]:
    at = [response]
    for field in places.split("."):
        at = [getattr(each, field) for each in at]
        at = [item for each in at for item in (each if isinstance(each, list) else [each])]
    return at


def topic(operation: Operation, name: str = "topic") -> Need:
    return Need(operation, ResourceType.TOPIC, name)


def group(operation: Operation) -> Need:
    return Need(operation, ResourceType.GROUP, "group")


def txn(operation: Operation) -> Need:
    return Need(operation, ResourceType.TRANSACTIONAL_ID, "txn")


def cluster(operation: Operation) -> Need:
    return Need(operation, ResourceType.CLUSTER, CLUSTER_NAME)


def token_owner(operation: Operation) -> Need:
    return Need(operation, ResourceType.USER, "owner")


READ, WRITE, CREATE, DELETE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE
ALTER, DESCRIBE, CLUSTER_ACTION = Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION
DESCRIBE_CONFIGS, ALTER_CONFIGS = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS
IDEMPOTENT_WRITE = Operation.IDEMPOTENT_WRITE


# --- requests that take more than a line ---


def produce(n: Names, *, by_id: bool = False, transactional: bool = False) -> ProduceRequest:
    batch = [PartitionProduceData(0, memoryview(make_batch([(b"k", b"v", 1)])))]
    data = TopicProduceData(topic_id=n.topic_id) if by_id else TopicProduceData(n.topic)
    data.partition_data = batch
    return ProduceRequest(n.txn if transactional else None, -1, 10_000, [data])


def fetch(n: Names, *, by_id: bool = False) -> FetchRequest:
    wanted = FetchTopic(topic_id=n.topic_id) if by_id else FetchTopic(n.topic)
    wanted.partitions = [FetchPartition(0, partition_max_bytes=1000)]
    return FetchRequest(topics=[wanted])


def offset_commit(n: Names, *, by_id: bool = False) -> OffsetCommitRequest:
    named = OffsetCommitRequestTopic(n.topic)
    if by_id:
        named = OffsetCommitRequestTopic(topic_id=n.topic_id)
    named.partitions = [OffsetCommitRequestPartition(0, 5), OffsetCommitRequestPartition(1, 5)]
    return OffsetCommitRequest(n.group, topics=[named])


def offset_fetch(n: Names, *, of_all: bool = False) -> OffsetFetchRequest:
    topics = None if of_all else [OffsetFetchRequestTopics(n.topic, partition_indexes=[0, 1])]
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(n.group, topics=topics)])


def old_offset_fetch(n: Names) -> OffsetFetchRequest:
    return OffsetFetchRequest(n.group, [OffsetFetchRequestTopic(n.topic, [0])])


def list_offsets(n: Names) -> ListOffsetsRequest:
    wanted = [ListOffsetsPartition(0, timestamp=-1), ListOffsetsPartition(1, timestamp=-2)]
    return ListOffsetsRequest(-1, 0, [ListOffsetsTopic(n.topic, wanted)])


def leader_epoch(n: Names) -> OffsetForLeaderEpochRequest:
    wanted = OffsetForLeaderTopic(n.topic, [OffsetForLeaderPartition(0, -1, 0)])
    return OffsetForLeaderEpochRequest(topics=[wanted])


def metadata(n: Names, name: str) -> MetadataRequest:
    return MetadataRequest([MetadataRequestTopic(name=name)])


def metadata_by_id(n: Names) -> MetadataRequest:
    return MetadataRequest([MetadataRequestTopic(topic_id=n.topic_id, name=None)])


def join(n: Names) -> JoinGroupRequest:
    protocols = [JoinGroupRequestProtocol("range", b"")]
    return JoinGroupRequest(n.group, 10_000, 10_000, "", None, "consumer", protocols)


def add_partitions(n: Names) -> AddPartitionsToTxnRequest:
    request = AddPartitionsToTxnRequest()
    request.v3_and_below_transactional_id = n.txn
    request.v3_and_below_topics = [AddPartitionsToTxnTopic(n.topic, [0, 1])]
    return request


def add_partitions_of_many(n: Names) -> AddPartitionsToTxnRequest:
    topics = [AddPartitionsToTxnTopic(n.topic, [0])]
    return AddPartitionsToTxnRequest(
        transactions=[AddPartitionsToTxnTransaction(n.txn, topics=topics)]
    )


def txn_offset_commit(n: Names) -> TxnOffsetCommitRequest:
    named = TxnOffsetCommitRequestTopic(n.topic, [TxnOffsetCommitRequestPartition(0, 5)])
    return TxnOffsetCommitRequest(n.txn, n.group, 1, 0, topics=[named])


def markers(n: Names) -> WriteTxnMarkersRequest:
    # A producer that is not there: the marker is written nowhere.
    named = [WritableTxnMarkerTopic(n.topic, [7])]
    return WriteTxnMarkersRequest([WritableTxnMarker(1, 0, False, named)])


def create_acl(n: Names) -> CreateAclsRequest:
    return CreateAclsRequest([AclCreation(2, n.new, 3, "User:nobody", "*", 3, 3)])


def delete_acl(n: Names) -> DeleteAclsRequest:
    return DeleteAclsRequest([DeleteAclsFilter(ANY, n.new, ANY, None, None, ANY, ANY)])


def describe_configs(kind: int, name: str) -> DescribeConfigsRequest:
    return DescribeConfigsRequest([DescribeConfigsResource(kind, name, None)])


def alter_configs(kind: int, name: str) -> altering.AlterConfigsRequest:
    return altering.AlterConfigsRequest([altering.AlterConfigsResource(kind, name)], True)


def incremental_alter(kind: int, name: str) -> incremental.IncrementalAlterConfigsRequest:
    resource = incremental.AlterConfigsResource(kind, name)
    return incremental.IncrementalAlterConfigsRequest([resource], True)


def reassign(n: Names) -> AlterPartitionReassignmentsRequest:
    named = ReassignableTopic(n.topic, [ReassignablePartition(0, None)])
    return AlterPartitionReassignmentsRequest(topics=[named])


def offset_delete(n: Names) -> OffsetDeleteRequest:
    named = OffsetDeleteRequestTopic(n.topic, [OffsetDeleteRequestPartition(0)])
    return OffsetDeleteRequest(n.group, [named])


def describe_quorum(n: Names) -> quorum.DescribeQuorumRequest:
    named = quorum.TopicData("__cluster_metadata", [quorum.PartitionData(0)])
    return quorum.DescribeQuorumRequest([named])


def delete_records(n: Names) -> DeleteRecordsRequest:
    named = DeleteRecordsTopic(n.topic, [DeleteRecordsPartition(0, 0)])
    return DeleteRecordsRequest([named], 10_000)


def alter_log_dirs(n: Names) -> AlterReplicaLogDirsRequest:
    named = [AlterReplicaLogDirTopic(n.topic, [0, 1])]
    return AlterReplicaLogDirsRequest([AlterReplicaLogDir("/", named)])


K = ApiKey

CASES: list[Case] = [
    Case(K.PRODUCE, 9, "", produce, "responses.partition_responses.error_code", TOPIC_DENIED,
         (topic(WRITE),)),
    Case(K.PRODUCE, 13, "by-id", lambda n: produce(n, by_id=True),
         "responses.partition_responses.error_code", TOPIC_DENIED, (topic(WRITE),)),
    Case(K.PRODUCE, 9, "transactional", lambda n: produce(n, transactional=True),
         "responses.partition_responses.error_code", TXN_DENIED, (txn(WRITE), topic(WRITE))),
    Case(K.FETCH, 4, "", fetch, "responses.partitions.error_code", TOPIC_DENIED, (topic(READ),)),
    Case(K.FETCH, 17, "by-id", lambda n: fetch(n, by_id=True), "responses.partitions.error_code",
         TOPIC_DENIED, (topic(READ),)),
    Case(K.LIST_OFFSETS, 7, "", list_offsets, "topics.partitions.error_code", TOPIC_DENIED,
         (topic(DESCRIBE),)),
    Case(K.METADATA, 9, "named", lambda n: metadata(n, n.topic), "topics.error_code",
         TOPIC_DENIED, (topic(DESCRIBE),)),
    Case(K.METADATA, 12, "by-id", metadata_by_id, "topics.error_code", TOPIC_DENIED,
         (topic(DESCRIBE),)),
    Case(K.METADATA, 9, "created", lambda n: metadata(n, n.new), "topics.error_code",
         TOPIC_DENIED, (topic(DESCRIBE, "new"), topic(CREATE, "new"))),
    Case(K.METADATA, 9, "created-by-cluster", lambda n: metadata(n, n.new), "topics.error_code",
         TOPIC_DENIED, (topic(DESCRIBE, "new"), cluster(CREATE))),
    Case(K.METADATA, 9, "all", lambda n: MetadataRequest(None), "topics.name", None,
         (topic(DESCRIBE),)),
    Case(K.METADATA, 0, "all", lambda n: MetadataRequest([]), "topics.name", None,
         (topic(DESCRIBE),)),
    Case(K.OFFSET_COMMIT, 8, "", offset_commit, "topics.partitions.error_code", GROUP_DENIED,
         (group(READ), topic(READ))),
    Case(K.OFFSET_COMMIT, 10, "by-id", lambda n: offset_commit(n, by_id=True),
         "topics.partitions.error_code", GROUP_DENIED, (group(READ), topic(READ))),
    Case(K.OFFSET_FETCH, 8, "group", offset_fetch, "groups.error_code", GROUP_DENIED,
         (group(DESCRIBE),)),
    Case(K.OFFSET_FETCH, 8, "all", lambda n: offset_fetch(n, of_all=True), "groups.topics.name",
         None, (group(DESCRIBE), topic(DESCRIBE))),
    Case(K.OFFSET_FETCH, 5, "group", old_offset_fetch, "error_code", GROUP_DENIED,
         (group(DESCRIBE),)),
    Case(K.OFFSET_FETCH, 1, "group", old_offset_fetch, "topics.partitions.error_code",
         GROUP_DENIED, (group(DESCRIBE), topic(DESCRIBE))),
    Case(K.FIND_COORDINATOR, 4, "group", lambda n: FindCoordinatorRequest("", 0, [n.group]),
         "coordinators.error_code", GROUP_DENIED, (group(DESCRIBE),)),
    Case(K.FIND_COORDINATOR, 4, "transaction", lambda n: FindCoordinatorRequest("", 1, [n.txn]),
         "coordinators.error_code", TXN_DENIED, (txn(DESCRIBE),)),
    Case(K.FIND_COORDINATOR, 0, "group", lambda n: FindCoordinatorRequest(n.group), "error_code",
         GROUP_DENIED, (group(DESCRIBE),)),
    Case(K.JOIN_GROUP, 9, "", join, "error_code", GROUP_DENIED, (group(READ),)),
    Case(K.JOIN_GROUP, 5, "", join, "error_code", GROUP_DENIED, (group(READ),)),
    Case(K.HEARTBEAT, 4, "", lambda n: HeartbeatRequest(n.group, 1, "m"), "error_code",
         GROUP_DENIED, (group(READ),)),
    Case(K.LEAVE_GROUP, 3, "", lambda n: LeaveGroupRequest(n.group), "error_code", GROUP_DENIED,
         (group(READ),)),
    Case(K.SYNC_GROUP, 5, "", lambda n: SyncGroupRequest(n.group, 1, "m"), "error_code",
         GROUP_DENIED, (group(READ),)),
    Case(K.DESCRIBE_GROUPS, 5, "", lambda n: DescribeGroupsRequest([n.group]),
         "groups.error_code", GROUP_DENIED, (group(DESCRIBE),)),
    Case(K.CONSUMER_GROUP_HEARTBEAT, 1, "",
         lambda n: ConsumerGroupHeartbeatRequest(
             n.group, "m", 0, rebalance_timeout_ms=1, subscribed_topic_names=[],
             topic_partitions=[]),
         "error_code", GROUP_DENIED, (group(READ),)),
    Case(K.CONSUMER_GROUP_DESCRIBE, 1, "", lambda n: ConsumerGroupDescribeRequest([n.group]),
         "groups.error_code", GROUP_DENIED, (group(DESCRIBE),)),
    Case(K.LIST_GROUPS, 5, "", lambda n: ListGroupsRequest(), "groups.group_id", None,
         (group(DESCRIBE),)),
    Case(K.LIST_GROUPS, 5, "by-cluster", lambda n: ListGroupsRequest(), "groups.group_id", None,
         (cluster(DESCRIBE),)),
    Case(K.CREATE_TOPICS, 7, "", lambda n: CreateTopicsRequest([CreatableTopic(n.new, 1, 1)]),
         "topics.error_code", TOPIC_DENIED, (topic(CREATE, "new"),)),
    Case(K.CREATE_TOPICS, 2, "by-cluster",
         lambda n: CreateTopicsRequest([CreatableTopic(n.new, 1, 1)]), "topics.error_code",
         TOPIC_DENIED, (cluster(CREATE),)),
    Case(K.DELETE_TOPICS, 5, "", lambda n: DeleteTopicsRequest(topic_names=[n.topic]),
         "responses.error_code", TOPIC_DENIED, (topic(DELETE),)),
    Case(K.DELETE_TOPICS, 6, "by-id",
         lambda n: DeleteTopicsRequest([DeleteTopicState(topic_id=n.topic_id)]),
         "responses.error_code", TOPIC_DENIED, (topic(DELETE),)),
    Case(K.DELETE_TOPICS, 6, "by-cluster",
         lambda n: DeleteTopicsRequest([DeleteTopicState(n.topic)]), "responses.error_code",
         TOPIC_DENIED, (cluster(DELETE),)),
    Case(K.DELETE_RECORDS, 2, "", delete_records, "topics.partitions.error_code", TOPIC_DENIED,
         (topic(DELETE),)),
    Case(K.INIT_PRODUCER_ID, 4, "", lambda n: InitProducerIdRequest(None, 1000), "error_code",
         CLUSTER_DENIED, (cluster(IDEMPOTENT_WRITE),)),
    Case(K.INIT_PRODUCER_ID, 4, "by-topic", lambda n: InitProducerIdRequest(None, 1000),
         "error_code", CLUSTER_DENIED, (topic(WRITE),)),
    Case(K.INIT_PRODUCER_ID, 4, "transactional", lambda n: InitProducerIdRequest(n.txn, 1000),
         "error_code", TXN_DENIED, (txn(WRITE),)),
    Case(K.OFFSET_FOR_LEADER_EPOCH, 4, "", leader_epoch, "topics.partitions.error_code",
         TOPIC_DENIED, (topic(DESCRIBE),)),
    Case(K.OFFSET_FOR_LEADER_EPOCH, 4, "by-cluster", leader_epoch,
         "topics.partitions.error_code", TOPIC_DENIED, (cluster(CLUSTER_ACTION),)),
    Case(K.ADD_PARTITIONS_TO_TXN, 3, "", add_partitions,
         "results_by_topic_v3_and_below.results_by_partition.partition_error_code", TXN_DENIED,
         (txn(WRITE), topic(WRITE))),
    Case(K.ADD_PARTITIONS_TO_TXN, 4, "many", add_partitions_of_many, "error_code",
         CLUSTER_DENIED, (cluster(CLUSTER_ACTION),)),
    Case(K.ADD_OFFSETS_TO_TXN, 3, "", lambda n: AddOffsetsToTxnRequest(n.txn, 1, 0, n.group),
         "error_code", TXN_DENIED, (txn(WRITE), group(READ))),
    Case(K.END_TXN, 3, "", lambda n: EndTxnRequest(n.txn, 1, 0), "error_code", TXN_DENIED,
         (txn(WRITE),)),
    Case(K.WRITE_TXN_MARKERS, 1, "", markers, "markers.topics.partitions.error_code",
         CLUSTER_DENIED, (cluster(CLUSTER_ACTION),)),
    Case(K.WRITE_TXN_MARKERS, 1, "by-administrators", markers,
         "markers.topics.partitions.error_code", CLUSTER_DENIED, (cluster(ALTER),)),
    Case(K.TXN_OFFSET_COMMIT, 3, "", txn_offset_commit, "topics.partitions.error_code",
         TXN_DENIED, (txn(WRITE), group(READ), topic(READ))),
    Case(K.DESCRIBE_ACLS, 3, "",
         lambda n: DescribeAclsRequest(ANY, None, ANY, None, None, ANY, ANY), "error_code",
         CLUSTER_DENIED, (cluster(DESCRIBE),)),
    Case(K.CREATE_ACLS, 3, "", create_acl, "results.error_code", CLUSTER_DENIED,
         (cluster(ALTER),)),
    Case(K.DELETE_ACLS, 3, "", delete_acl, "filter_results.error_code", CLUSTER_DENIED,
         (cluster(ALTER),)),
    Case(K.DESCRIBE_CONFIGS, 4, "topic", lambda n: describe_configs(CONFIG_TOPIC, n.topic),
         "results.error_code", TOPIC_DENIED, (topic(DESCRIBE_CONFIGS),)),
    Case(K.DESCRIBE_CONFIGS, 4, "broker", lambda n: describe_configs(CONFIG_BROKER, "0"),
         "results.error_code", CLUSTER_DENIED, (cluster(DESCRIBE_CONFIGS),)),
    Case(K.DESCRIBE_CONFIGS, 4, "loggers", lambda n: describe_configs(CONFIG_LOGGERS, "0"),
         "results.error_code", CLUSTER_DENIED, (cluster(DESCRIBE_CONFIGS),)),
    Case(K.DESCRIBE_CONFIGS, 4, "group", lambda n: describe_configs(CONFIG_GROUP, n.group),
         "results.error_code", GROUP_DENIED, (group(DESCRIBE_CONFIGS),)),
    Case(K.ALTER_CONFIGS, 2, "topic", lambda n: alter_configs(CONFIG_TOPIC, n.topic),
         "responses.error_code", TOPIC_DENIED, (topic(ALTER_CONFIGS),)),
    Case(K.ALTER_CONFIGS, 2, "broker", lambda n: alter_configs(CONFIG_BROKER, "0"),
         "responses.error_code", CLUSTER_DENIED, (cluster(ALTER_CONFIGS),)),
    Case(K.INCREMENTAL_ALTER_CONFIGS, 1, "topic",
         lambda n: incremental_alter(CONFIG_TOPIC, n.topic), "responses.error_code",
         TOPIC_DENIED, (topic(ALTER_CONFIGS),)),
    Case(K.INCREMENTAL_ALTER_CONFIGS, 1, "broker",
         lambda n: incremental_alter(CONFIG_BROKER, ""), "responses.error_code",
         CLUSTER_DENIED, (cluster(ALTER_CONFIGS),)),
    Case(K.INCREMENTAL_ALTER_CONFIGS, 1, "loggers",
         lambda n: incremental_alter(CONFIG_LOGGERS, "0"), "responses.error_code",
         CLUSTER_DENIED, (cluster(ALTER_CONFIGS),)),
    Case(K.ALTER_REPLICA_LOG_DIRS, 2, "", alter_log_dirs, "results.partitions.error_code",
         CLUSTER_DENIED, (cluster(ALTER),)),
    Case(K.DESCRIBE_LOG_DIRS, 4, "", lambda n: DescribeLogDirsRequest(None), "error_code",
         CLUSTER_DENIED, (cluster(DESCRIBE),)),
    Case(K.DESCRIBE_LOG_DIRS, 1, "", lambda n: DescribeLogDirsRequest(None),
         "results.topics.name", None, (cluster(DESCRIBE),)),
    Case(K.CREATE_PARTITIONS, 3, "",
         lambda n: CreatePartitionsRequest([CreatePartitionsTopic(n.topic, 3, None)], 10_000),
         "results.error_code", TOPIC_DENIED, (topic(ALTER),)),
    Case(K.DELETE_GROUPS, 2, "", lambda n: DeleteGroupsRequest([n.group]), "results.error_code",
         GROUP_DENIED, (group(DELETE),)),
    Case(K.ELECT_LEADERS, 2, "",
         lambda n: ElectLeadersRequest(0, [TopicPartitions(n.topic, [0])]), "error_code",
         CLUSTER_DENIED, (cluster(ALTER),)),
    Case(K.ELECT_LEADERS, 0, "",
         lambda n: ElectLeadersRequest(0, [TopicPartitions(n.topic, [0])]),
         "replica_election_results.partition_result.error_code", CLUSTER_DENIED,
         (cluster(ALTER),)),
    Case(K.ALTER_PARTITION_REASSIGNMENTS, 1, "", reassign, "error_code", CLUSTER_DENIED,
         (cluster(ALTER),)),
    Case(K.LIST_PARTITION_REASSIGNMENTS, 0, "", lambda n: ListPartitionReassignmentsRequest(),
         "error_code", CLUSTER_DENIED, (cluster(DESCRIBE),)),
    Case(K.OFFSET_DELETE, 0, "", offset_delete, "error_code", GROUP_DENIED, (group(DELETE),)),
    Case(K.OFFSET_DELETE, 0, "topic", offset_delete, "topics.partitions.error_code", None,
         (group(DELETE), topic(READ))),
    Case(K.DESCRIBE_CLIENT_QUOTAS, 1, "", lambda n: DescribeClientQuotasRequest(), "error_code",
         CLUSTER_DENIED, (cluster(DESCRIBE_CONFIGS),)),
    Case(K.ALTER_CLIENT_QUOTAS, 1, "",
         lambda n: AlterClientQuotasRequest([EntryRequest([EntityData("user", "u")])]),
         "entries.error_code", CLUSTER_DENIED, (cluster(ALTER_CONFIGS),)),
    Case(K.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, "",
         lambda n: DescribeUserScramCredentialsRequest(None), "error_code", CLUSTER_DENIED,
         (cluster(DESCRIBE),)),
    Case(K.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, "named",
         lambda n: DescribeUserScramCredentialsRequest([UserName("u")]), "results.error_code",
         CLUSTER_DENIED, (cluster(DESCRIBE),)),
    Case(K.ALTER_USER_SCRAM_CREDENTIALS, 0, "",
         lambda n: AlterUserScramCredentialsRequest([ScramCredentialDeletion("u", 1)]),
         "results.error_code", CLUSTER_DENIED, (cluster(ALTER),)),
    Case(K.CREATE_DELEGATION_TOKEN, 3, "for-another",
         lambda n: CreateDelegationTokenRequest("User", n.topic, [], -1), "error_code",
         TOKEN_DENIED, (token_owner(Operation.CREATE_TOKENS),)),
    Case(K.DESCRIBE_DELEGATION_TOKEN, 3, "of-another",
         lambda n: DescribeDelegationTokenRequest(None), "tokens.principal_name", None,
         (token_owner(Operation.DESCRIBE_TOKENS),)),
    Case(K.DESCRIBE_DELEGATION_TOKEN, 3, "by-id",
         lambda n: DescribeDelegationTokenRequest(None), "tokens.principal_name", None,
         (Need(DESCRIBE, ResourceType.DELEGATION_TOKEN, "token"),)),
    Case(K.DESCRIBE_QUORUM, 2, "", describe_quorum, "error_code", CLUSTER_DENIED,
         (cluster(DESCRIBE),)),
    Case(K.UPDATE_FEATURES, 1, "", lambda n: UpdateFeaturesRequest(), "error_code",
         CLUSTER_DENIED, (cluster(ALTER),)),
    Case(K.UNREGISTER_BROKER, 0, "", lambda n: UnregisterBrokerRequest(77), "error_code",
         CLUSTER_DENIED, (cluster(ALTER),)),
    Case(K.DESCRIBE_PRODUCERS, 0, "",
         lambda n: producers.DescribeProducersRequest([producers.TopicRequest(n.topic, [0, 1])]),
         "topics.partitions.error_code", TOPIC_DENIED, (topic(READ),)),
    Case(K.DESCRIBE_TRANSACTIONS, 0, "", lambda n: DescribeTransactionsRequest([n.txn]),
         "transaction_states.error_code", TXN_DENIED, (txn(DESCRIBE),)),
    Case(K.LIST_TRANSACTIONS, 2, "", lambda n: ListTransactionsRequest(),
         "transaction_states.transactional_id", None, (txn(DESCRIBE),)),
    Case(K.LIST_CONFIG_RESOURCES, 1, "", lambda n: ListConfigResourcesRequest(), "error_code",
         CLUSTER_DENIED, (cluster(DESCRIBE_CONFIGS),)),
    Case(K.DESCRIBE_TOPIC_PARTITIONS, 0, "",
         lambda n: topic_partitions.DescribeTopicPartitionsRequest(
             [topic_partitions.TopicRequest(n.topic)]
         ), "topics.error_code", TOPIC_DENIED, (topic(DESCRIBE),)),
    Case(K.DESCRIBE_TOPIC_PARTITIONS, 0, "all",
         lambda n: topic_partitions.DescribeTopicPartitionsRequest(), "topics.name", None,
         (topic(DESCRIBE),)),
]  # fmt: skip
