"""AlterReplicaLogDirs (key 34, KIP-113): the store is the only log directory there is.

Moving a partition to the directory it is in succeeds; every other directory is unknown.
"""

from __future__ import annotations

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode
from moldau.broker.handlers.details.authorization import CLUSTER_DENIED, is_cluster_denied
from moldau.broker.handlers.details.lookup import Found, find_topics, raise_fault
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)


async def handle(
    broker: Broker, request: AlterReplicaLogDirsRequest, call: Call
) -> AlterReplicaLogDirsResponse:
    results = []
    denied = is_cluster_denied(broker, call, Operation.ALTER)
    named = (topic.name for directory in request.dirs for topic in directory.topics)
    found = await find_topics(broker, () if denied else named)
    for directory in request.dirs:
        is_ours = directory.path == broker.store.label
        for topic in directory.topics:
            partitions = [
                AlterReplicaLogDirPartitionResult(
                    partition,
                    CLUSTER_DENIED
                    if denied
                    else _error(found[topic.name], partition)
                    if is_ours
                    else ErrorCode.LOG_DIR_NOT_FOUND,
                )
                for partition in topic.partitions
            ]
            results.append(AlterReplicaLogDirTopicResult(topic.name, partitions))
    return AlterReplicaLogDirsResponse(results=results)


def _error(found: Found, partition: int) -> ErrorCode:
    topic = raise_fault(found)
    if topic is None or not 0 <= partition < topic.partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE
