"""AlterReplicaLogDirs (key 34, KIP-113): the store is the only log directory there is.

Moving a partition to where it is succeeds; every other directory is unknown.
"""

from __future__ import annotations

from broker.errors import ErrorCode
from broker.handlers.authorization import CLUSTER_DENIED, is_cluster_denied
from broker.handlers.context import Broker
from broker.security.resources import Operation
from broker.server.call import Call
from broker.wire.messages.alter_replica_log_dirs import (
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
    for directory in request.dirs:
        is_ours = directory.path == broker.store.label
        for topic in directory.topics:
            partitions = [
                AlterReplicaLogDirPartitionResult(
                    partition,
                    CLUSTER_DENIED
                    if denied
                    else await _error(broker, topic.name, partition)
                    if is_ours
                    else ErrorCode.LOG_DIR_NOT_FOUND,
                )
                for partition in topic.partitions
            ]
            results.append(AlterReplicaLogDirTopicResult(topic.name, partitions))
    return AlterReplicaLogDirsResponse(results=results)


async def _error(broker: Broker, name: str, partition: int) -> ErrorCode:
    topic = await broker.topics.find(name)
    if topic is None or not 0 <= partition < topic.partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE
