"""AlterReplicaLogDirs: API key 34, versions 1 to 2."""

from __future__ import annotations

from moldau.broker.wire.schema import Int16, Int32, Message, String


class AlterReplicaLogDirTopic(Message):
    name: String = ""
    partitions: list[Int32] = []


class AlterReplicaLogDir(Message):
    path: String = ""
    topics: list[AlterReplicaLogDirTopic] = []


class AlterReplicaLogDirsRequest(Message):
    dirs: list[AlterReplicaLogDir] = []


class AlterReplicaLogDirPartitionResult(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class AlterReplicaLogDirTopicResult(Message):
    topic_name: String = ""
    partitions: list[AlterReplicaLogDirPartitionResult] = []


class AlterReplicaLogDirsResponse(Message):
    throttle_time_ms: Int32 = 0
    results: list[AlterReplicaLogDirTopicResult] = []
