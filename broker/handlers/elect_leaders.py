"""ElectLeaders (key 43, KIP-183, KIP-460): every leader is the preferred one, at all times.

If no partition is named, Kafka lists every topic with the partitions that had an election: none.
"""

from __future__ import annotations

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode
from moldau.broker.handlers.details.authorization import (
    CLUSTER_DENIED,
    CLUSTER_DENIED_TEXT,
    is_cluster_denied,
)
from moldau.broker.handlers.details.lookup import find_topics, raise_fault
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.topics.topics import Topic
from moldau.broker.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
    TopicPartitions,
)

PREFERRED, UNCLEAN = 0, 1


async def handle(broker: Broker, request: ElectLeadersRequest, call: Call) -> ElectLeadersResponse:
    if is_cluster_denied(broker, call, Operation.ALTER):
        return _denied(request)
    is_known_type = request.election_type in (PREFERRED, UNCLEAN)
    error = ErrorCode.NONE if is_known_type else ErrorCode.INVALID_REQUEST
    response = ElectLeadersResponse(error_code=error)
    wanted = request.topic_partitions
    if wanted is None:
        wanted = [TopicPartitions(topic.name, []) for topic in broker.topics.all()]
    found = await find_topics(broker, (item.topic for item in wanted))
    for item in wanted:
        topic = raise_fault(found[item.topic])
        results = [
            _result(topic, partition)
            if is_known_type
            else PartitionResult(
                partition,
                ErrorCode.INVALID_REQUEST,
                f"there is no election type {request.election_type}",
            )
            for partition in item.partitions
        ]
        response.replica_election_results.append(ReplicaElectionResult(item.topic, results))
    return response


def _denied(request: ElectLeadersRequest) -> ElectLeadersResponse:
    refused = [
        ReplicaElectionResult(
            item.topic,
            [
                PartitionResult(partition, CLUSTER_DENIED, CLUSTER_DENIED_TEXT)
                for partition in item.partitions
            ],
        )
        for item in request.topic_partitions or ()
    ]
    return ElectLeadersResponse(error_code=CLUSTER_DENIED, replica_election_results=refused)


def _result(topic: Topic | None, partition: int) -> PartitionResult:
    if topic is None or not 0 <= partition < topic.partitions:
        return PartitionResult(
            partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no such topic or partition"
        )
    text = "leader election is not needed: the preferred leader leads"
    return PartitionResult(partition, ErrorCode.ELECTION_NOT_NEEDED, text)
