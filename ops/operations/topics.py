"""Topics of a running broker: partitions, leaders, offsets, sizes, configuration. No printing."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from moldau.broker.log.epochs import EPOCH_ZERO
from moldau.broker.settings.kafka.config_key import ConfigSource
from moldau.broker.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from moldau.broker.wire.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
)
from moldau.broker.wire.messages.metadata import MetadataResponseTopic
from moldau.ops.client import (
    EARLIEST,
    LATEST,
    ClientError,
    Cluster,
    TopicPartition,
    nodes_of,
    refusal,
)
from moldau.ops.operations.log_gaps import epochs_of, shown
from moldau.ops.operations.streams import stream_keys, stream_views

TOPIC_RESOURCE = 2  # of DescribeConfigs and AlterConfigs


def id_text(topic_id: bytes) -> str:
    """As Kafka's tools write it."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()


def topic_sizes(
    cluster: Cluster, topics: dict[str, MetadataResponseTopic]
) -> dict[TopicPartition, int]:
    """Bytes in the store: every broker answers for what it leads."""
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
    topic: MetadataResponseTopic,
    sizes: dict[TopicPartition, int],
    configs: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """`configs`: its configuration, where it is known already."""
    name = topic.name or ""
    if configs is None:
        configs = topic_configs(cluster, name)
    native = native_facts(configs)
    if native is not None:
        native["groups"] = _redis_groups(cluster, native, name, len(topic.partitions))
    nodes = {node.node_id: node for node in nodes_of(cluster.metadata())}
    places = [TopicPartition(name, one.partition_index) for one in topic.partitions]
    starts = cluster.list_offsets(dict.fromkeys(places, EARLIEST))
    ends = cluster.list_offsets(dict.fromkeys(places, LATEST))
    epochs = epochs_of(
        cluster,
        {TopicPartition(name, one.partition_index): one.leader_epoch for one in topic.partitions},
    )
    partitions = []
    for one in sorted(topic.partitions, key=lambda one: one.partition_index):
        place = TopicPartition(name, one.partition_index)
        if place not in starts or place not in ends:
            raise ClientError(f"topic {name}: it was deleted meanwhile")
        leader, known = nodes.get(one.leader_id), epochs[place] or EPOCH_ZERO
        partitions.append(
            {
                "partition": one.partition_index,
                "leader": one.leader_id,
                "leader_address": None if leader is None else leader.address,
                "start_offset": starts[place],
                "end_offset": ends[place],
                # Offsets of a native topic are times: records cannot be counted by them.
                "records": None if native else known.count(starts[place], ends[place]),
                "size_bytes": sizes.get(place, 0),
                "leader_epoch": one.leader_epoch,
                **shown(epochs[place]),
            }
        )
    return {
        "name": name,
        "id": id_text(topic.topic_id),
        "internal": topic.is_internal,
        "native": native,
        "records": None if native else sum(one["records"] for one in partitions),
        "size_bytes": sum(one["size_bytes"] for one in partitions),
        "partitions": partitions,
        "configs": [one for one in configs if one["source"] != "default"],
    }


def native_facts(configs: list[dict[str, Any]]) -> dict[str, Any] | None:
    """How a native topic is stored, shared with Redis applications; None for any other."""
    values = {one["name"]: one["value"] for one in configs}
    if values["moldau.storage"] != "native":
        return None
    return {
        "stream": values["moldau.native.key"] or "moldau:{topic}:{partition}",
        "bits": int(values["moldau.native.sequence.bits"]),
        "value": values["moldau.native.value"] or None,
    }


def config_values(cluster: Cluster, topics: Sequence[str], key: str) -> dict[str, str | None]:
    """One configuration of many topics; those that cannot be described are left out."""
    wanted = [DescribeConfigsResource(TOPIC_RESOURCE, name, [key]) for name in topics]
    return {
        result.resource_name: entry.value
        for result in cluster.call(DescribeConfigsRequest(wanted)).results
        if not result.error_code
        for entry in result.configs
        if entry.name == key
    }


def topic_configs(cluster: Cluster, name: str) -> list[dict[str, Any]]:
    resource = DescribeConfigsResource(TOPIC_RESOURCE, name, None)
    (result,) = cluster.call(DescribeConfigsRequest([resource])).results
    if result.error_code:
        raise refusal(f"topic {name}", result.error_code, result.error_message)
    return [
        {
            "name": entry.name,
            "value": None if entry.is_sensitive else entry.value,
            "source": _source_text(entry.config_source),
        }
        for entry in sorted(result.configs, key=lambda entry: entry.name)
    ]


def _source_text(source: int) -> str:
    if source == ConfigSource.DEFAULT_CONFIG:
        return "default"
    return "topic" if source == ConfigSource.DYNAMIC_TOPIC_CONFIG else "broker"


def _redis_groups(
    cluster: Cluster, native: dict[str, Any], topic: str, partitions: int
) -> list[dict[str, Any]] | None:
    """The consumer groups of the streams in Redis; None when the store cannot be asked from here.

    Both those of Kafka clients and those of Redis applications.
    """
    views = stream_views(cluster, stream_keys(native["stream"], topic, range(partitions)))
    if views is None or None in views:
        return None
    return [
        {
            "partition": partition,
            "group": group.name,
            "consumers": group.consumers,
            "pending": group.pending,
            "last_delivered": group.last_delivered,
            "lag": group.lag,
        }
        for partition, view in enumerate(views)
        if view is not None
        for group in view.groups
    ]
