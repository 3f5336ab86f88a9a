"""The end of a mirror: its topics become writable here, where the source's end.

For each topic, each step of which may be the last one before a crash:

1. its mark says that the mirror has ended: neither the mirror nor a client can append any more;
2. the source is asked once more where it ends. If it has grown, its producers were not stopped, and
   the mark is put back; else the mark says that everything is here;
3. transactions that are still open are aborted: their producers cannot end them here;
4. the mark is removed: clients may write.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from moldau.broker.settings.kafka.topic_keys import MIRROR_ENDED, MIRROR_SOURCE
from moldau.broker.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from moldau.ops.client import LATEST, STALE_LEADER, ClientError, Cluster, TopicPartition, refusal
from moldau.ops.mirror.topics import MIRROR_LEVEL, TopicMirror
from moldau.ops.operations.configs import alter_topic_configs, config_values
from moldau.ops.operations.open_transactions import OpenTransaction, open_transactions

TRIES = 5


class Grown(NamedTuple):
    """A partition whose producers were not stopped."""

    place: TopicPartition
    mirrored_to: int
    end: int


def cut_over(source: Cluster, target: Cluster, topic: TopicMirror) -> tuple[list[Grown], int]:
    """Partitions that have grown meanwhile, if any: then nothing has changed; and how many open
    transactions were aborted. Raises ClientError."""
    places = [one.place for one in topic.partitions]
    ended, level = topic.mark + MIRROR_ENDED, topic.mark + MIRROR_LEVEL
    marks = config_values(target, [topic.name], MIRROR_SOURCE)
    mark = marks.get(topic.name)
    if topic.name not in marks:
        topic.refuse("it was deleted here while it was mirrored")
        return [], 0
    if not mark:  # another mirror has cut it over, and clients may have written since
        topic.end()
        return [], 0
    if mark not in (topic.mark, ended, level):
        topic.refuse(f"it is a mirror of something else now: its mark is {mark}")
        return [], 0
    if mark != level:
        alter_topic_configs(target, topic.name, [(MIRROR_SOURCE, ended)])
        if grown := _grown(source, target, places):
            alter_topic_configs(target, topic.name, [(MIRROR_SOURCE, topic.mark)])
            return grown, 0
        alter_topic_configs(target, topic.name, [(MIRROR_SOURCE, level)])
    aborted = _abort_open(target, places)
    alter_topic_configs(target, topic.name, [(MIRROR_SOURCE, None)])
    topic.end()
    return [], aborted


def _grown(source: Cluster, target: Cluster, places: Collection[TopicPartition]) -> list[Grown]:
    there = source.list_offsets(dict.fromkeys(places, LATEST))
    here = target.list_offsets(dict.fromkeys(places, LATEST))
    return [
        Grown(place, here.get(place, 0), end)
        for place, end in sorted(there.items())
        if here.get(place, 0) != end
    ]


def _abort_open(target: Cluster, places: Collection[TopicPartition]) -> int:
    aborted = 0
    for _ in range(TRIES):
        found = open_transactions(target, places)
        if not found:
            return aborted
        for one in found:
            aborted += _abort(target, one)
    raise ClientError(
        f"{len(found)} transactions stay open, the first in partition {found[0].place}: start the "
        "cut-over again, it goes on here"
    )


def _abort(target: Cluster, one: OpenTransaction) -> bool:
    topic = WritableTxnMarkerTopic(one.place.topic, [one.place.partition])
    marker = WritableTxnMarker(one.producer_id, one.producer_epoch, False, [topic], 0)
    answer = target.call(WriteTxnMarkersRequest([marker]), target.leader(one.place))
    code = answer.markers[0].topics[0].partitions[0].error_code
    if code in STALE_LEADER:
        target.forget_leader(one.place)
        return False
    if code:
        raise refusal(f"partition {one.place}", code)
    return True
