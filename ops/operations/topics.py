"""Topics of a running broker: describe, create and delete them, and give them more partitions."""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping, Sequence

import msgspec

from moldau.broker.metrics.document import PartitionRow, count_records
from moldau.broker.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from moldau.broker.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
)
from moldau.broker.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.broker.wire.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
)
from moldau.broker.wire.messages.metadata import MetadataResponsePartition, MetadataResponseTopic
from moldau.ops.client import (
    EARLIEST,
    LATEST,
    ClientError,
    Cluster,
    Node,
    TopicPartition,
    nodes_of,
    refusal,
)
from moldau.ops.local_broker import LocalWorkers
from moldau.ops.operations.configs import Config, topic_configs
from moldau.ops.operations.streams import RedisGroup, redis_groups

BROKER_DEFAULT = -1  # of partitions and replication factor
TIMEOUT_MS = 30_000


class Epoch(msgspec.Struct, frozen=True):
    epoch: int
    start_offset: int


class Gap(msgspec.Struct, frozen=True):
    """Offsets that were lost, or never given out."""

    first_offset: int
    last_offset: int


class PartitionDescription(msgspec.Struct, frozen=True):
    partition: int
    leader: int
    leader_address: str | None
    start_offset: int
    end_offset: int
    records: int | None  # None: offsets of a native topic are times and count nothing
    size_bytes: int
    leader_epoch: int
    # None: the log is not in its first epoch, and its leader cannot be asked from here.
    epochs: list[Epoch] | None
    gaps: list[Gap] | None


class NativeStorage(msgspec.Struct, frozen=True):
    """How a native topic is stored, shared with Redis applications."""

    stream: str
    bits: int
    value: str | None
    groups: list[RedisGroup] | None = None  # None: no worker can be asked from here


class TopicDescription(msgspec.Struct, frozen=True):
    name: str
    id: str
    internal: bool
    native: NativeStorage | None
    records: int | None
    size_bytes: int
    partitions: list[PartitionDescription]
    configs: list[Config]  # without the defaults


def id_text(topic_id: bytes) -> str:
    """The id in the form of Kafka's tools."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()


# --- describing ---


def topic_sizes(
    cluster: Cluster, topics: Mapping[str, MetadataResponseTopic]
) -> dict[TopicPartition, int]:
    """Bytes in the store: every broker answers for the partitions that it leads."""
    wanted = [
        DescribableLogDirTopic(name, [one.partition_index for one in topic.partitions])
        for name, topic in topics.items()
    ]
    sizes: dict[TopicPartition, int] = {}
    for node in cluster.nodes() if wanted else ():
        answer = cluster.call(DescribeLogDirsRequest(wanted), node)
        for result in answer.results:
            if answer.error_code or result.error_code:
                subject = f"sizes at broker {node.node_id}"
                raise refusal(subject, answer.error_code or result.error_code)
            for topic in result.topics:
                for one in topic.partitions:
                    place = TopicPartition(topic.name, one.partition_index)
                    sizes[place] = sizes.get(place, 0) + one.partition_size
    return sizes


def describe_topic(
    cluster: Cluster,
    workers: LocalWorkers,
    topic: MetadataResponseTopic,
    sizes: Mapping[TopicPartition, int],
    configs: list[Config] | None = None,
) -> TopicDescription:
    """`configs`: its configuration, where it is known already. Raises ClientError."""
    name = topic.name or ""
    if configs is None:
        configs = topic_configs(cluster, name)
    native = native_storage(configs)
    if native is not None:
        groups = redis_groups(workers, native.stream, name, len(topic.partitions))
        native = msgspec.structs.replace(native, groups=groups)
    nodes = {node.node_id: node for node in nodes_of(cluster.metadata())}
    listed = {
        TopicPartition(name, one.partition_index): one
        for one in sorted(topic.partitions, key=lambda one: one.partition_index)
    }
    starts = cluster.list_offsets(dict.fromkeys(listed, EARLIEST))
    ends = cluster.list_offsets(dict.fromkeys(listed, LATEST))
    if not starts.keys() == ends.keys() == listed.keys():
        raise ClientError(f"topic {name}: it was deleted meanwhile")
    # In epoch 0 nothing was lost: the leader need not be asked.
    raised = {place: one.leader_id for place, one in listed.items() if one.leader_epoch > 0}
    rows = workers.rows(raised)
    partitions = [
        _partition(
            one,
            nodes.get(one.leader_id),
            (starts[place], ends[place]),
            sizes.get(place, 0),
            rows.get(place),
            is_native=native is not None,
        )
        for place, one in listed.items()
    ]
    return TopicDescription(
        name,
        id_text(topic.topic_id),
        topic.is_internal,
        native,
        None if native else sum(one.records or 0 for one in partitions),
        sum(one.size_bytes for one in partitions),
        partitions,
        [one for one in configs if one.source != "default"],
    )


def _partition(
    one: MetadataResponsePartition,
    leader: Node | None,
    bounds: tuple[int, int],
    size: int,
    row: PartitionRow | None,
    *,
    is_native: bool,
) -> PartitionDescription:
    is_known = row is not None or one.leader_epoch <= 0
    epochs, gaps = ((), ()) if row is None else (row.epochs, row.gaps)
    return PartitionDescription(
        one.partition_index,
        one.leader_id,
        None if leader is None else leader.address,
        *bounds,
        None if is_native else count_records(gaps, *bounds),
        size,
        one.leader_epoch,
        [Epoch(*epoch) for epoch in epochs] if is_known else None,
        [Gap(first, end - 1) for first, end in gaps] if is_known else None,
    )


def native_storage(configs: list[Config]) -> NativeStorage | None:
    """None: it is not a native topic."""
    values = {one.name: one.value for one in configs}
    if values["moldau.storage"] != "native":
        return None
    return NativeStorage(
        values["moldau.native.key"] or "moldau:{topic}:{partition}",
        int(values["moldau.native.sequence.bits"] or 0),
        values["moldau.native.value"] or None,
    )


# --- changing ---


def create_topics(
    cluster: Cluster,
    names: Sequence[str],
    partitions: int = BROKER_DEFAULT,
    configs: Collection[tuple[str, str]] = (),
    *,
    dry_run: bool = False,
    timeout_ms: int = TIMEOUT_MS,
) -> list[CreatableTopicResult]:
    """One result for each, which may be an error."""
    settings = [CreatableTopicConfig(key, value) for key, value in configs]
    wanted = [CreatableTopic(name, partitions, BROKER_DEFAULT, [], settings) for name in names]
    results: list[CreatableTopicResult] = cluster.call(
        CreateTopicsRequest(wanted, timeout_ms, dry_run)
    ).topics
    return results


def create_topic(
    cluster: Cluster, name: str, partitions: int, configs: Collection[tuple[str, str]]
) -> None:
    """Raises ClientError."""
    (result,) = create_topics(cluster, [name], partitions, configs)
    if result.error_code:
        raise refusal(f"topic {name}", result.error_code, result.error_message)


def delete_topics(cluster: Cluster, names: Collection[str]) -> dict[str, ClientError | None]:
    """Why a topic was not deleted, by its name; None: it was."""
    request = DeleteTopicsRequest([DeleteTopicState(name) for name in names], [], TIMEOUT_MS)
    return {
        one.name: refusal(f"topic {one.name}", one.error_code, one.error_message)
        if one.error_code
        else None
        for one in cluster.call(request).responses
    }


def delete_topic(cluster: Cluster, name: str) -> None:
    """Raises ClientError."""
    for error in delete_topics(cluster, [name]).values():
        if error is not None:
            raise error


def add_partitions(cluster: Cluster, name: str, total: int, *, dry_run: bool = False) -> None:
    """Raises ClientError."""
    topic = CreatePartitionsTopic(name, total, None)
    (answer,) = cluster.call(CreatePartitionsRequest([topic], TIMEOUT_MS, dry_run)).results
    if answer.error_code:
        raise refusal(f"topic {name}", answer.error_code, answer.error_message)
