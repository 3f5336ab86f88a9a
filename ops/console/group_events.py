"""The events of groups, read once and then followed: pages that are live ask for them every second.

All of them are kept in memory, as the topic itself is bounded; the oldest go first.
"""

from __future__ import annotations

import threading

from moldau.broker.topics.topics import GROUP_EVENTS
from moldau.ops.client import EARLIEST, LATEST, Cluster, TopicPartition
from moldau.ops.client.reading import OffsetOutOfRange, read
from moldau.ops.operations.group_history import Event, parse, since

MAX_EVENTS_OF_GROUP = 20_000
MAX_EVENTS = 400_000
READ_BYTES = 4 << 20
_PLACE = TopicPartition(GROUP_EVENTS, 0)


class GroupEventLog:
    def __init__(self) -> None:
        self._lock = threading.Lock()  # questions run in threads
        self._topic_id = b""
        self._position = 0
        self._events: dict[str, list[Event]] = {}
        self._count = 0

    def of(self, cluster: Cluster, group: str, since_ms: int) -> list[Event]:
        """The events of a group since a time, and what was in force then. Raises ClientError."""
        with self._lock:
            self._follow(cluster)
            return since(self._events.get(group, []), since_ms)

    def _follow(self, cluster: Cluster) -> None:
        topic = cluster.topics([GROUP_EVENTS]).get(GROUP_EVENTS)
        if topic is None:
            return
        if topic.topic_id != self._topic_id:  # the first time, or the topic was deleted
            self._topic_id, self._events, self._count = topic.topic_id, {}, 0
            self._position = cluster.list_offsets({_PLACE: EARLIEST})[_PLACE]
        end = cluster.list_offsets({_PLACE: LATEST})[_PLACE]
        while self._position < end:
            try:
                found = read(cluster, _PLACE, self._position, max_bytes=READ_BYTES)
            except OffsetOutOfRange:
                self._position = cluster.list_offsets({_PLACE: EARLIEST})[_PLACE]
                continue
            for record in found.records:
                if record.key is not None:
                    self._add(record.key.decode(errors="replace"), parse(record.value or b"{}"))
            if found.next_offset <= self._position:
                break
            self._position = found.next_offset

    def _add(self, group: str, event: Event) -> None:
        events = self._events.setdefault(group, [])
        events.append(event)
        self._count += 1
        if len(events) > MAX_EVENTS_OF_GROUP:
            self._count -= MAX_EVENTS_OF_GROUP // 10
            del events[: MAX_EVENTS_OF_GROUP // 10]
        if self._count > MAX_EVENTS:
            oldest = next(iter(self._events))
            self._count -= len(self._events.pop(oldest))
