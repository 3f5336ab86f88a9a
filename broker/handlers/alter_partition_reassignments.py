"""AlterPartitionReassignments (key 45, KIP-455; KIP-860: v1).

A partition has one replica, on the broker that leads it, and a rule spreads the leaders. A request
for the current assignment succeeds, as in Kafka; any other is refused, partition by partition.
"""

from __future__ import annotations

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode, KafkaError, MoldauError, code_for, message_for
from moldau.broker.handlers.details.authorization import (
    CLUSTER,
    CLUSTER_DENIED,
    CLUSTER_DENIED_TEXT,
    denial,
    is_cluster_denied,
)
from moldau.broker.handlers.details.lookup import Found, check_found, find_topics
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)


async def handle(
    broker: Broker, request: AlterPartitionReassignmentsRequest, call: Call
) -> AlterPartitionReassignmentsResponse:
    response = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change, error_message=None
    )
    denied = is_cluster_denied(broker, call, Operation.ALTER)
    if denied:
        response.error_code, response.error_message = CLUSTER_DENIED, CLUSTER_DENIED_TEXT
    found = await find_topics(broker, () if denied else (topic.name for topic in request.topics))
    for topic in request.topics:
        answers = []
        for item in topic.partitions:
            try:
                if denied:
                    raise denial(CLUSTER)
                _check(broker, found[topic.name], item)
                answer = ReassignablePartitionResponse(item.partition_index, error_message=None)
            except MoldauError as fault:
                answer = ReassignablePartitionResponse(
                    item.partition_index, code_for(fault), message_for(fault)
                )
            answers.append(answer)
        response.responses.append(ReassignableTopicResponse(topic.name, answers))
    return response


def _check(broker: Broker, found: Found, item: ReassignablePartition) -> None:
    topic = check_found(found, item.partition_index)
    replicas = item.replicas
    if replicas is None:
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    if replicas != [broker.leader(topic, item.partition_index)]:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"replicas {replicas}: partitions are kept in the store and cannot be reassigned; "
            "the number of workers is changed with `moldau serve --workers`",
        )
