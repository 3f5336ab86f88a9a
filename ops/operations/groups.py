"""A consumer group of a running broker: state, members, offsets, lag. No printing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from moldau.broker.errors import ErrorCode, StoreFault
from moldau.broker.group.record import ConsumerRecord, GroupRecord, UnknownRecordFormat, decode
from moldau.broker.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from moldau.ops.client import LATEST, Cluster, TopicPartition, refusal
from moldau.ops.operations.found_group import CLASSIC_TYPE, CONSUMER_TYPE, find_group
from moldau.ops.operations.log_gaps import epochs_of

if TYPE_CHECKING:
    from moldau.broker.store.blocking import BlockingStore
    from moldau.ops.operations.lag import NativeLags


class Committed(NamedTuple):
    offset: int
    metadata: str


def committed_offsets(cluster: Cluster, group_id: str) -> dict[TopicPartition, Committed]:
    """Everything the group has committed."""
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id, topics=None)])
    answer = cluster.call_coordinator(
        group_id, request, lambda answer: int(answer.groups[0].error_code)
    ).groups[0]
    if answer.error_code:
        raise refusal(f"group {group_id}", answer.error_code)
    found = {}
    for topic in answer.topics:
        for one in topic.partitions:
            place = TopicPartition(topic.name, one.partition_index)
            if one.error_code:
                raise refusal(f"group {group_id}, partition {place}", one.error_code)
            if one.committed_offset >= 0:
                found[place] = Committed(one.committed_offset, one.metadata or "")
    return found


def describe(
    cluster: Cluster, store: BlockingStore | None, native: NativeLags, group_id: str
) -> dict[str, Any]:
    """The group as `describe --json` prints it. Raises ClientError."""
    group = find_group(cluster, group_id)
    if group is None:
        raise refusal(f"group {group_id}", ErrorCode.GROUP_ID_NOT_FOUND)
    committed = committed_offsets(cluster, group_id)
    members = []
    owners: dict[TopicPartition, dict[str, Any]] = {}
    for one in sorted(group.members, key=lambda one: (one.client_id, one.member_id)):
        assigned = one.assigned
        member = {
            "member_id": one.member_id,
            "instance_id": one.instance_id,
            "client_id": one.client_id,
            "host": one.host,
            "assignment": None if assigned is None else _by_topic(assigned),
            "epoch": one.epoch,
            "protocol": CLASSIC_TYPE if one.is_classic else CONSUMER_TYPE,
        }
        members.append(member)
        owners |= dict.fromkeys(assigned or (), member)
    places = sorted(committed.keys() | owners.keys())
    ends = cluster.list_offsets(dict.fromkeys(places, LATEST))
    partitions = [_partition(place, committed, ends, owners) for place in places]
    _count_native(native, group_id, dict(zip(places, partitions, strict=True)))
    _leave_out_gaps(cluster, places, partitions)
    lags = [shown["lag"] for shown in partitions if shown["committed_offset"] is not None]
    record = None if store is None else _stored_record(store, group_id)
    coordinator = cluster.coordinator(group_id)
    return {
        "group": group_id,
        "identity": None if record is None else record.identity,
        "state": group.group_state,
        "type": group.type,
        "generation": group.epoch if record is None else record.generation_id,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol,
        "coordinator": {"id": coordinator.node_id, "address": coordinator.address},
        "total_lag": sum(lags) if lags and None not in lags else None,
        "members": members,
        "partitions": partitions,
    }


def _count_native(
    native: NativeLags, group_id: str, partitions: dict[TopicPartition, dict[str, Any]]
) -> None:
    """Offsets of native topics are times: their difference is no lag."""
    behind: dict[TopicPartition, int] = {}
    there = {place for place, shown in partitions.items() if shown["end_offset"] is not None}
    natives = native.native_among(place.topic for place in there)
    for place, shown in partitions.items():
        shown["native"] = place in there and place.topic in natives
        if shown["native"] and shown["lag"]:  # 0 is 0: everything below the end is committed
            behind[place] = shown["committed_offset"]
    counted = native.lags(group_id, behind)
    for place in behind:
        partitions[place]["lag"] = counted.get(place)


def _leave_out_gaps(
    cluster: Cluster, places: list[TopicPartition], partitions: list[dict[str, Any]]
) -> None:
    """Offsets that do not exist are no lag: what was lost cannot be read, nor committed."""
    behind = {
        place: shown
        for place, shown in zip(places, partitions, strict=True)
        if shown["lag"] and not shown["native"]
    }
    found = cluster.topics(sorted({place.topic for place in behind}))
    current = {
        place: one.leader_epoch
        for topic in found.values()
        for one in topic.partitions
        if (place := TopicPartition(topic.name or "", one.partition_index)) in behind
    }
    for place, epochs in epochs_of(cluster, current).items():
        shown = behind[place]
        if epochs is not None:
            shown["lag"] = epochs.count(shown["committed_offset"], shown["end_offset"])


def _stored_record(store: BlockingStore, group_id: str) -> GroupRecord | ConsumerRecord | None:
    """Identity and generation, which Kafka's protocol has no field for."""
    try:
        stored = store.group_record(group_id)
        return None if stored is None else decode(stored)
    except (StoreFault, UnknownRecordFormat, msgspec.DecodeError):
        return None  # all else is known from the broker


def _partition(
    place: TopicPartition,
    committed: dict[TopicPartition, Committed],
    ends: dict[TopicPartition, int],
    owners: dict[TopicPartition, dict[str, Any]],
) -> dict[str, Any]:
    mine = committed.get(place)
    end = ends.get(place)
    owner = owners.get(place, {})
    return {
        "topic": place.topic,
        "partition": place.partition,
        "committed_offset": None if mine is None else mine.offset,
        "end_offset": end,
        "lag": None if mine is None or end is None else max(end - mine.offset, 0),
        "metadata": None if mine is None else mine.metadata,
        "member_id": owner.get("member_id"),
        "client_id": owner.get("client_id"),
        "host": owner.get("host"),
    }


def _by_topic(places: list[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for place in sorted(places):
        topics.setdefault(place.topic, []).append(place.partition)
    return topics
