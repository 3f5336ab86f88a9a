"""A native topic as Redis shows it, beside the Kafka groups that read it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from moldau.broker.private.stream_views import GroupView, PendingView, StreamView
from moldau.broker.store.stream_ids import parse
from moldau.ops.console.index import TopicGroup

YEAR_2001_MS = 978_307_200_000  # ids below it were chosen by hand and are no times
DAY_MS = 86_400_000


class Stream(NamedTuple):
    partition: int
    key: str
    view: StreamView


class Pending(NamedTuple):
    partition: int
    entry: PendingView
    age_ms: int | None  # since it was added; None: its id is no time


class Consumer(NamedTuple):
    partition: int
    name: str
    pending: int
    idle_ms: int


class Side(NamedTuple):
    """A group: what Kafka knows of it, and what Redis does, in all partitions together."""

    name: str
    kafka: TopicGroup | None  # None: only Redis applications use it, or it has committed nothing
    in_redis: bool
    consumers: int
    pending: int
    lag: int | None  # not delivered yet; None: Redis does not know
    oldest: Pending | None
    shown_consumers: list[Consumer]
    shown_pending: list[Pending]


def sides(streams: Sequence[Stream], kafka: Iterable[TopicGroup], now_ms: int) -> list[Side]:
    by_name = {group.name: group for group in kafka}
    in_redis: dict[str, list[tuple[int, GroupView]]] = {}
    for stream in streams:
        for group in stream.view.groups:
            in_redis.setdefault(group.name, []).append((stream.partition, group))
    return [
        _side(name, by_name.get(name), in_redis.get(name, []), now_ms)
        for name in sorted(by_name.keys() | in_redis.keys())
    ]


def _side(
    name: str, kafka: TopicGroup | None, parts: list[tuple[int, GroupView]], now_ms: int
) -> Side:
    pending = [
        Pending(partition, entry, age_of(entry.id, now_ms))
        for partition, group in parts
        for entry in group.oldest_pending
    ]
    pending.sort(key=lambda each: parse(each.entry.id.encode()))
    lags = [group.lag for _, group in parts]
    return Side(
        name,
        kafka,
        bool(parts),
        len({each.name for _, group in parts for each in group.shown_consumers}),
        sum(group.pending for _, group in parts),
        None if None in lags or not parts else sum(lag or 0 for lag in lags),
        pending[0] if pending else None,
        [
            Consumer(partition, each.name, each.pending, each.idle_ms)
            for partition, group in parts
            for each in group.shown_consumers
        ],
        pending,
    )


def age_of(entry_id: str, now_ms: int) -> int | None:
    ms = parse(entry_id.encode()).ms
    return max(now_ms - ms, 0) if YEAR_2001_MS <= ms <= now_ms + DAY_MS else None
