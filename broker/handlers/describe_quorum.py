"""DescribeQuorum (key 55, KIP-595, KIP-836, KIP-853): who keeps the cluster's metadata.

In Kafka that is the controllers' Raft quorum. Here it is the store, and every worker reads it: the
controller that clients are pointed at is shown as the only voter, the other brokers as observers,
and the count of changes ever made to the metadata as the end of its log.
"""

from __future__ import annotations

import time

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode, StoreFault, code_for, message_for
from moldau.broker.handlers.details.authorization import (
    CLUSTER_DENIED,
    CLUSTER_DENIED_TEXT,
    is_cluster_denied,
)
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    Node,
    QuorumPartition,
    QuorumTopic,
    ReplicaState,
)

METADATA_TOPIC, METADATA_PARTITION = "__cluster_metadata", 0
LISTENER = "CONTROLLER"
LEADER_EPOCH = 0  # there is no election


async def handle(
    broker: Broker, request: DescribeQuorumRequest, call: Call
) -> DescribeQuorumResponse:
    if is_cluster_denied(broker, call, Operation.DESCRIBE):
        return DescribeQuorumResponse(CLUSTER_DENIED, CLUSTER_DENIED_TEXT)
    response = DescribeQuorumResponse()
    for topic in request.topics:
        answers = []
        for item in topic.partitions:
            if (topic.topic_name, item.partition_index) != (METADATA_TOPIC, METADATA_PARTITION):
                answers.append(
                    QuorumPartition(
                        item.partition_index,
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        f"only partition {METADATA_PARTITION} of {METADATA_TOPIC} is described",
                    )
                )
                continue
            answers.append(await _metadata(broker))
            voter = broker.endpoints(call.identity.listener)[0]
            response.nodes = [Node(voter.node_id, [Listener(LISTENER, voter.host, voter.port)])]
        response.topics.append(QuorumTopic(topic.topic_name, answers))
    return response


async def _metadata(broker: Broker) -> QuorumPartition:
    try:
        end = await broker.store.topics.change_count()
    except StoreFault as fault:
        return QuorumPartition(METADATA_PARTITION, code_for(fault), message_for(fault))
    now = time.time_ns() // 1_000_000
    states = [
        ReplicaState(
            node, log_end_offset=end, last_fetch_timestamp=now, last_caught_up_timestamp=now
        )
        for node in broker.nodes
    ]
    return QuorumPartition(
        METADATA_PARTITION,
        error_message=None,
        leader_id=broker.nodes[0],
        leader_epoch=LEADER_EPOCH,
        high_watermark=end,
        current_voters=states[:1],
        observers=states[1:],
    )
