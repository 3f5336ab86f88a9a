"""How many records of native topics a group has before it. Their offsets are times: none can be
taken from another. The store is asked where it can be (local_store.py); elsewhere it is unknown.
"""

from __future__ import annotations

from typing import Any

import msgspec
import redis

from broker.log.native.ids import Numbering, Run, parse, parse_mark
from broker.log.topics import native_key
from broker.store import keys
from broker.store.topics import TopicRecord
from ops.admin.topics_describe import native_facts, topic_configs
from ops.client import Cluster, TopicPartition

STEP = 100  # entries at a time: they may be large, and the store holds so many of them twice
MOST_COUNTED = 10_000


class NativeLags:
    """For the groups of one call of `describe`."""

    def __init__(self, cluster: Cluster, store: redis.Redis | None) -> None:
        self._cluster = cluster
        self._store = store
        self._facts: dict[str, dict[str, Any] | None] = {}

    def is_native(self, topic: str) -> bool:
        if topic not in self._facts:
            self._facts[topic] = native_facts(topic_configs(self._cluster, topic))
        return self._facts[topic] is not None

    def lag(self, group_id: str, place: TopicPartition, committed: int) -> int | None:
        """Records at `committed` and above; None: nobody knows, or too many to count."""
        if self._store is None:
            return None
        try:
            return self._count(self._store, group_id, place, committed)
        except (redis.RedisError, msgspec.DecodeError):
            return None  # the stream is gone, say: the rest is worth showing

    def _count(
        self, store: redis.Redis, group_id: str, place: TopicPartition, committed: int
    ) -> int | None:
        stored: Any = store.hget(keys.TOPICS.decode(), place.topic)
        facts = self._facts[place.topic]
        if stored is None or facts is None:
            return None
        record = msgspec.msgpack.decode(stored, type=TopicRecord)
        pattern = record.configs.get("moldau.native.key", "")
        stream = native_key(pattern, place.topic, place.partition).decode()
        base = keys.stream(place.topic, record.incarnation, place.partition)
        numbering = Numbering(facts["bits"])
        marks: Any = store.zrange(keys.marks(base).decode(), 0, -1)
        numbering.note([parse_mark(raw) for raw in marks])
        run = numbering.start_at(committed)
        told: Any = store.xinfo_stream(stream)
        first = told["first-entry"]
        if first is None or committed <= numbering.offset_from(parse(first[0])):
            return int(told["length"])
        known = self._told_by_redis(store, stream, group_id, run)
        return self._walk(store, stream, run) if known is None else known

    def _told_by_redis(
        self, store: redis.Redis, stream: str, group_id: str, run: Run
    ) -> int | None:
        """Redis counts for a group that has read from the start on. It counts from what was
        delivered: that is of use where nothing of it is uncommitted."""
        groups: Any = store.xinfo_groups(stream)
        for one in groups:
            if one["name"] == group_id.encode():
                here = parse(one["last-delivered-id"]).after == run.first and not one["pending"]
                lag = one.get("lag")
                return int(lag) if here and lag is not None else None
        return None

    def _walk(self, store: redis.Redis, stream: str, run: Run) -> int | None:
        at, counted = bytes(run.first).decode(), 0
        while at and counted <= MOST_COUNTED:
            told: Any = store.fcall_ro("moldau_survey", 1, stream, at, str(STEP))
            at, counted = told[0].decode(), counted + int(told[2])
        return counted if counted <= MOST_COUNTED else None
