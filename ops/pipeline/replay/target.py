"""The topic that a replay sends to, and checks of it."""

from __future__ import annotations

from typing import NamedTuple

from moldau.ops.client import Cluster
from moldau.ops.operations.configs import topic_configs
from moldau.ops.pipeline.errors import PipelineError
from moldau.ops.pipeline.replay.producer import BATCH_BYTES


class TargetTopic(NamedTuple):
    topic_id: str
    partitions: int
    retention_ms: int
    batch_bytes: int
    """The size of batches to send."""
    epochs: dict[int, int]
    """Leader epochs by partition."""


def find_target(cluster: Cluster, name: str) -> TargetTopic:
    """Raises PipelineError if records cannot be replayed to it."""
    found = cluster.topics([name]).get(name)
    if found is None:
        raise PipelineError(
            f"there is no topic {name}; create it first, with the number of partitions it should "
            f"have: moldau topics create {name} --partitions N"
        )
    configs = {one.name: one.value for one in topic_configs(cluster, name)}
    if configs.get("moldau.storage") == "native":
        raise PipelineError(
            f"topic {name} has moldau.storage=native: its entries do not keep producer ids and "
            "sequences, so duplicates could not be prevented; replay to an ordinary topic"
        )
    if configs.get("message.timestamp.type") == "LogAppendTime":
        raise PipelineError(
            f"topic {name} would not keep timestamps; change it first: moldau topics alter "
            f"{name} --config message.timestamp.type=CreateTime"
        )
    retention_ms = int(configs.get("retention.ms") or -1)
    largest = int(configs.get("max.message.bytes") or BATCH_BYTES)
    return TargetTopic(
        found.topic_id.hex(),
        len(found.partitions),
        retention_ms if "delete" in (configs.get("cleanup.policy") or "delete") else -1,
        max(min(BATCH_BYTES, largest // 2), 1),
        {one.partition_index: one.leader_epoch for one in found.partitions},
    )
