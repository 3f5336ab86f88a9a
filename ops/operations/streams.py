"""The Redis streams of native topics, as a worker of this machine sees them in Redis."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from moldau.broker.private.stream_views import MAX_STREAMS, StreamsWanted, StreamView
from moldau.broker.private.table import STREAM_VIEWS
from moldau.broker.store import keys
from moldau.ops.local_broker import LocalWorkers


class RedisGroup(msgspec.Struct, frozen=True):
    """A consumer group of a stream in Redis, of Kafka clients or of Redis applications."""

    partition: int
    group: str
    consumers: int
    pending: int
    last_delivered: str
    lag: int | None


def stream_keys(pattern: str, topic: str, partitions: Sequence[int]) -> list[bytes]:
    return [keys.native_key(pattern, topic, partition) for partition in partitions]


def stream_views(
    workers: LocalWorkers, streams: Sequence[bytes], *, groups: bool = True, entries: bool = False
) -> list[StreamView | None] | None:
    """Views in the order of the keys, with None for a stream that could not be read; None alone if
    no worker can be asked from here."""
    found: list[StreamView | None] = []
    for first in range(0, len(streams), MAX_STREAMS):
        wanted = StreamsWanted(list(streams[first : first + MAX_STREAMS]), groups, entries)
        answer = workers.ask_any(STREAM_VIEWS, wanted)
        if answer is None:
            return None
        found += answer
    return found


def redis_groups(
    workers: LocalWorkers, pattern: str, topic: str, partitions: int
) -> list[RedisGroup] | None:
    """None: the streams cannot be read from here."""
    views = stream_views(workers, stream_keys(pattern, topic, range(partitions)))
    if views is None or None in views:
        return None
    return [
        RedisGroup(
            partition, group.name, group.consumers, group.pending, group.last_delivered, group.lag
        )
        for partition, view in enumerate(views)
        if view is not None
        for group in view.groups
    ]
