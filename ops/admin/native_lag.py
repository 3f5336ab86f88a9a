"""The lag of groups on native topics, in records.

Offsets of native topics are made of times, so records have to be counted in the store
(local_store.py). Where that cannot be asked the lag is unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.errors import StoreFault
from broker.log.native.ids import Numbering, Run, parse, parse_mark
from broker.store import keys
from ops.admin.topic_state import native_facts, topic_configs
from ops.client import Cluster, TopicPartition

if TYPE_CHECKING:
    from broker.store.blocking import BlockingStore

STEP = 100  # entries at a time: they may be large, and the store holds as many of them twice
MAX_COUNTED = 10_000


class NativeLags:
    """For the groups of one call of `describe`."""

    def __init__(self, cluster: Cluster, store: BlockingStore | None) -> None:
        self._cluster = cluster
        self._store = store
        self._facts: dict[str, dict[str, Any] | None] = {}

    def is_native(self, topic: str) -> bool:
        if topic not in self._facts:
            self._facts[topic] = native_facts(topic_configs(self._cluster, topic))
        return self._facts[topic] is not None

    def lag(self, group_id: str, place: TopicPartition, committed: int) -> int | None:
        """Records at `committed` and above; None: unknown, or more than MAX_COUNTED."""
        if self._store is None:
            return None
        try:
            return self._count(self._store, group_id, place, committed)
        except StoreFault:
            return None  # the stream may be gone; everything else is worth showing

    def _count(
        self, store: BlockingStore, group_id: str, place: TopicPartition, committed: int
    ) -> int | None:
        record = store.topic_record(place.topic)
        facts = self._facts[place.topic]
        if record is None or facts is None:
            return None
        pattern = record.configs.get("moldau.native.key", "")
        stream = keys.native_key(pattern, place.topic, place.partition)
        log = keys.stream(place.topic, record.incarnation, place.partition)
        beside = keys.beside(stream, log)
        numbering = Numbering(facts["bits"])
        numbering.note([parse_mark(raw) for raw in store.marks(beside)])
        run = numbering.start_at(committed)
        length, first = store.stream_length(stream)
        if first is None or committed <= numbering.offset_from(parse(first)):
            return length
        counted = self._counted_by_redis(store, stream, group_id, run)
        return self._walk(store, stream, run) if counted is None else counted

    def _counted_by_redis(
        self, store: BlockingStore, stream: bytes, group_id: str, run: Run
    ) -> int | None:
        """The lag Redis keeps of a group that has read from the start on.

        It counts from what was delivered, so it is of use where nothing of that is uncommitted.
        """
        for group in store.stream_groups(stream):
            if group.name == group_id.encode():
                is_here = parse(group.last_delivered_id).after == run.first and not group.pending
                return group.lag if is_here else None
        return None

    def _walk(self, store: BlockingStore, stream: bytes, run: Run) -> int | None:
        at, counted = bytes(run.first), 0
        while at and counted <= MAX_COUNTED:
            at, more = store.count_records(stream, at, STEP)
            counted += more
        return counted if counted <= MAX_COUNTED else None
