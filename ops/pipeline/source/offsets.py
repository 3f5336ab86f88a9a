"""Offsets in the form, and divided in the way, of Spark's own Kafka source. No I/O.

In options and checkpoints they are JSON, `{"topic": {"0": 23, "1": -2}}`, where -2 is earliest
and -1 latest.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from moldau.ops.client import TopicPartition
from moldau.ops.pipeline.errors import PipelineError
from moldau.ops.pipeline.source.fetch import OffsetRange

LATEST, EARLIEST = -1, -2

Offsets = dict[TopicPartition, int]
Nested = dict[str, dict[str, int]]


def parse(option: str, text: str) -> Offsets:
    """The offsets or timestamps by partition that an option has."""
    try:
        return from_nested(json.loads(text))
    except (ValueError, AttributeError, TypeError):
        raise PipelineError(
            f'{option}: want JSON such as {{"orders": {{"0": 23, "1": -2}}}}, not {text!r}'
        ) from None


def parse_partitions(option: str, text: str) -> list[TopicPartition]:
    """`{"topic": [0, 1]}`, as `assign` takes it."""
    try:
        return [
            TopicPartition(topic, int(partition))
            for topic, partitions in json.loads(text).items()
            for partition in partitions
        ]
    except (ValueError, AttributeError, TypeError):
        raise PipelineError(
            f'{option}: want JSON such as {{"orders": [0, 1]}}, not {text!r}'
        ) from None


def from_nested(nested: Mapping[str, Mapping[str, int]]) -> Offsets:
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, partitions in nested.items()
        for partition, offset in partitions.items()
    }


def to_nested(offsets: Mapping[TopicPartition, int]) -> Nested:
    nested: Nested = {}
    for partition in sorted(offsets):
        nested.setdefault(partition.topic, {})[str(partition.partition)] = offsets[partition]
    return nested


def rate_limited(
    starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], limit: int
) -> Offsets:
    """End offsets that make about `limit` offsets, shared among partitions by their lag."""
    lags = {partition: max(end - starts.get(partition, end), 0) for partition, end in ends.items()}
    total = sum(lags.values())
    if total <= limit:
        return dict(ends)
    limited = {}
    for partition, end in ends.items():
        share = limit * lags[partition] / total
        # At least one of each partition that has any, or it would starve.
        count = math.ceil(share) if share < 1 else math.floor(share)
        begin = starts.get(partition, end)
        limited[partition] = min(begin + count, end) if lags[partition] else end
    return limited


def split(
    ranges: Sequence[OffsetRange], min_partitions: int = 0, max_records: int | None = None
) -> list[OffsetRange]:
    """Ranges cut into at least `min_partitions` pieces of at most `max_records` offsets each."""
    wanted = [one for one in ranges if one.size]
    if max_records is not None:
        wanted = [piece for one in wanted for piece in _pieces(one, -(-one.size // max_records))]
    if len(wanted) >= min_partitions:
        return wanted
    total = sum(one.size for one in wanted)
    return [
        piece
        for one in wanted
        for piece in _pieces(one, max(round(one.size / total * min_partitions), 1))
    ]


def _pieces(one: OffsetRange, count: int) -> Iterable[OffsetRange]:
    count = min(count, one.size)
    edges = [one.start + one.size * index // count for index in range(count + 1)]
    return [OffsetRange(one.topic_partition, start, end) for start, end in pairwise(edges)]


class Bundle(NamedTuple):
    """Ranges that one task reads, one after another."""

    ranges: tuple[OffsetRange, ...]

    @property
    def size(self) -> int:
        return sum(one.size for one in self.ranges)


def bundles(ranges: Sequence[OffsetRange], count: int) -> list[Bundle]:
    """Ranges in at most `count` bundles of about the same size; those of a topic together."""
    if not ranges:
        return []
    count = max(min(count, len(ranges)), 1)
    share = sum(one.size for one in ranges) / count
    made: list[list[OffsetRange]] = [[]]
    filled = 0.0
    for one in sorted(ranges):
        # The middle of a range decides whether it belongs to this bundle or the next.
        if made[-1] and len(made) < count and filled + one.size / 2 > share * len(made):
            made.append([])
        made[-1].append(one)
        filled += one.size
    return [Bundle(tuple(group)) for group in made]
