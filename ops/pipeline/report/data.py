"""The figures of a report, computed by Spark from the tables of a lake.

Only sums come back to the driver: by partition, by bucket of time, by size. At most about a hundred
buckets cover the time of a topic, however long that is.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, Any, NamedTuple

from moldau.broker.topics.topics import GROUP_EVENTS
from moldau.broker.wire.batch import LEADER_EPOCH_AT
from moldau.ops.pipeline.lake.query import table_frame, text_or_base64
from moldau.ops.pipeline.lake.schemas import BATCHES, RECORDS
from moldau.ops.pipeline.lake.tables import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BUCKETS = 100
MAX_TOPICS = 50
MAX_GROUPS = 50
MAX_GAPS = 20
MAX_KEYS = 10
_WIDTHS_S = (1, 5, 15, 60, 300, 900, 3600, 3 * 3600, 6 * 3600, 86400, 7 * 86400, 30 * 86400)
_EVENT = (
    "event string, `group` string, time_ms bigint, reason string, generation bigint, "
    "members bigint, duration_ms bigint, count bigint, seconds double, "
    "offsets map<string, array<array<bigint>>>"
)


class Partition(NamedTuple):
    partition: int
    rows: int
    bytes: int
    first_offset: int
    last_offset: int
    first_ms: int
    last_ms: int

    @property
    def without_record(self) -> int:
        """Offsets between the first and the last that have no record."""
        return self.last_offset - self.first_offset + 1 - self.rows


class Gap(NamedTuple):
    """Offsets that no batch of the lake covers.

    `in_log`: the log has the same gap, as its leader epoch changed there. What the store lost of it
    was no longer there to be archived.
    """

    partition: int
    first: int
    last: int
    in_log: bool = False


class Volume(NamedTuple):
    """Records and bytes of a bucket of time."""

    at_ms: int
    rows: int
    bytes: int


class Sizes(NamedTuple):
    median: int
    p99: int
    largest: int
    histogram: list[tuple[int, int]]
    """Exponents of two, and the number of records of at least that size but less than twice it."""


class Keys(NamedTuple):
    distinct: int
    """Approximately."""
    without: int
    top: list[tuple[str, int]]


class Topic(NamedTuple):
    name: str
    partitions: list[Partition]
    width_ms: int
    volume: list[Volume]
    ends: dict[int, list[tuple[int, int]]]
    """For each partition, times and the end of its log from then on, as far as the lake knows."""
    sizes: Sizes
    keys: Keys
    gaps: list[Gap]

    def never_in_log(self, partition: int, first: int, end: int) -> int:
        """How many of these offsets are in gaps that the log has too."""
        return sum(
            max(min(gap.last + 1, end) - max(gap.first, first), 0)
            for gap in self.gaps
            if gap.in_log and gap.partition == partition
        )

    @property
    def rows(self) -> int:
        return sum(one.rows for one in self.partitions)

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.partitions)


class Pause(NamedTuple):
    at_ms: int
    duration_ms: int
    reason: str


class GroupActivity(NamedTuple):
    name: str
    pauses: list[Pause]
    joined: int
    left: int
    expired: int
    members: int
    commits: list[tuple[int, float]]
    """Time, and commits per minute."""
    lag: list[tuple[int, int]]
    """Time, and the lag in records of archived topics."""


class Report(NamedTuple):
    lake: str
    topics: list[Topic]
    groups: list[GroupActivity]
    topics_left_out: int
    dropped_events: int


def compute(spark: SparkSession, lake: Lake) -> Report:
    from pyspark.sql import functions as f

    records = table_frame(spark, lake, RECORDS).withColumn(
        "size",
        f.coalesce(f.length("key"), f.lit(0)) + f.coalesce(f.length("value"), f.lit(0)),
    )
    batches = table_frame(spark, lake, BATCHES)
    partitions = _partitions(records)
    names = sorted(partitions, key=lambda name: -sum(one.bytes for one in partitions[name]))
    gaps = _gaps(batches)
    topics = [
        _topic(records.where(f.col("topic") == name), name, partitions[name], gaps.get(name, []))
        for name in names[:MAX_TOPICS]
    ]
    events = records.where(f.col("topic") == GROUP_EVENTS)
    groups, dropped = _groups(events, {topic.name: topic for topic in topics})
    left_out = max(len(names) - MAX_TOPICS, 0)
    return Report(str(lake.path), topics, groups, left_out, dropped)


def _partitions(records: DataFrame) -> dict[str, list[Partition]]:
    from pyspark.sql import functions as f

    rows = (
        records.groupBy("topic", "partition")
        .agg(
            f.count("*"),
            f.sum("size"),
            f.min("offset"),
            f.max("offset"),
            f.unix_millis(f.min("timestamp")),
            f.unix_millis(f.max("timestamp")),
        )
        .orderBy("topic", "partition")
        .collect()
    )
    found: dict[str, list[Partition]] = {}
    for topic, *rest in rows:
        found.setdefault(topic, []).append(Partition(*rest))
    return found


def _gaps(batches: DataFrame) -> dict[str, list[Gap]]:
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    before = (
        Window.partitionBy("topic", "partition")
        .orderBy("base_offset")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    rows = (
        batches.select("topic", "partition", "base_offset", "last_offset")
        .withColumn("end", f.max("last_offset").over(before) + 1)
        .where(f.col("base_offset") > f.col("end"))
        .select("topic", "partition", "end", f.col("base_offset") - 1)
        .orderBy("topic", "partition", "end")
    )
    gaps = [tuple(row) for row in rows.limit(MAX_TOPICS * MAX_GAPS).collect()]
    in_log = _between_epochs(batches, gaps) if gaps else set()
    found: dict[str, list[Gap]] = {}
    for topic, *gap in gaps:
        is_in_log = (topic, *gap[:2]) in in_log
        found.setdefault(topic, []).append(Gap(*gap)._replace(in_log=is_in_log))
    return found


def _between_epochs(batches: DataFrame, gaps: list[tuple[Any, ...]]) -> set[tuple[str, int, int]]:
    """Topic, partition and first offset of the gaps whose edges are of different leader epochs."""
    from pyspark.sql import functions as f

    edges = batches.sparkSession.createDataFrame(
        [(topic, partition, first, first - 1, last + 1) for topic, partition, first, last in gaps],
        "topic string, partition int, first bigint, before bigint, after bigint",
    )
    epoch = f.hex(f.substring("data", LEADER_EPOCH_AT + 1, 4))
    named = batches.where(f.col("topic").isin({topic for topic, *_ in gaps}))
    before = named.select(
        "topic", "partition", f.col("last_offset").alias("before"), epoch.alias("old")
    )
    after = named.select(
        "topic", "partition", f.col("base_offset").alias("after"), epoch.alias("new")
    )
    found = (
        edges.join(before, ["topic", "partition", "before"])
        .join(after, ["topic", "partition", "after"])
        .where(f.col("old") != f.col("new"))
        .select("topic", "partition", "first")
    )
    return {(topic, partition, first) for topic, partition, first in found.collect()}


def bucket_width_ms(first_ms: int, last_ms: int) -> int:
    span_s = (last_ms - first_ms) / 1000
    for width in _WIDTHS_S:
        if span_s / width <= BUCKETS:
            return width * 1000
    return int(span_s / BUCKETS + 1) * 1000


def _topic(records: DataFrame, name: str, partitions: list[Partition], gaps: list[Gap]) -> Topic:
    from pyspark.sql import functions as f

    first_ms = min(one.first_ms for one in partitions)
    width_ms = bucket_width_ms(first_ms, max(one.last_ms for one in partitions))
    bucket = f.floor(f.unix_millis("timestamp") / width_ms) * width_ms
    volume: dict[int, Volume] = {}
    ends: dict[int, list[tuple[int, int]]] = {}
    rows = (
        records.groupBy(bucket.alias("at"), "partition")
        .agg(f.count("*"), f.sum("size"), f.max("offset"))
        .orderBy("at")
    )
    for at_ms, partition, count, size, last in rows.collect():
        sum_ = volume.get(at_ms, Volume(at_ms, 0, 0))
        volume[at_ms] = Volume(at_ms, sum_.rows + count, sum_.bytes + size)
        known = ends.setdefault(partition, [])
        # Records of a bucket are in the log by its end.
        known.append((at_ms + width_ms, max(last + 1, known[-1][1] if known else 0)))
    return Topic(
        name, partitions, width_ms, list(volume.values()), ends, _sizes(records), _keys(records),
        gaps[:MAX_GAPS],
    )  # fmt: skip


def _sizes(records: DataFrame) -> Sizes:
    from pyspark.sql import functions as f

    percentiles, largest = records.agg(
        f.percentile_approx("size", [0.5, 0.99]), f.max("size")
    ).collect()[0]
    exponent = f.floor(f.log2(f.greatest(f.col("size"), f.lit(1))))
    rows = records.groupBy(exponent.alias("e")).count().orderBy("e").collect()
    return Sizes(percentiles[0], percentiles[1], largest, [(int(e), n) for e, n in rows])


def _keys(records: DataFrame) -> Keys:
    from pyspark.sql import functions as f

    without, distinct = records.agg(
        f.count(f.when(f.col("key").isNull(), 1)), f.approx_count_distinct("key")
    ).collect()[0]
    top = (
        records.where(f.col("key").isNotNull())
        .groupBy("key")
        .count()
        .orderBy(f.desc("count"), "key")
        .limit(MAX_KEYS)
    )
    return Keys(
        distinct, without, [(text_or_base64(bytes(key)), count) for key, count in top.collect()]
    )


# --- groups ---


def _groups(events: DataFrame, topics: dict[str, Topic]) -> tuple[list[GroupActivity], int]:
    from pyspark.sql import functions as f

    parsed = events.select(f.from_json(f.col("value").cast("string"), _EVENT).alias("e")).select(
        "e.*"
    )
    dropped = parsed.where(f.col("event") == "events_dropped").agg(f.sum("count")).collect()[0][0]
    activity: dict[str, GroupActivity] = {}
    per_group = parsed.where(f.col("group").isNotNull()).orderBy("time_ms")
    for row in per_group.toLocalIterator():
        group = activity.get(row.group)
        if group is None:
            group = activity[row.group] = GroupActivity(row.group, [], 0, 0, 0, 0, [], [])
        activity[row.group] = _with_event(group, row, topics)
    ordered = sorted(activity.values(), key=lambda one: (-len(one.pauses), one.name))
    return ordered[:MAX_GROUPS], dropped or 0


def _with_event(group: GroupActivity, row: Any, topics: dict[str, Topic]) -> GroupActivity:
    match row.event:
        case "rebalance_completed":
            group.pauses.append(Pause(row.time_ms, row.duration_ms or 0, row.reason or ""))
            return group._replace(members=row.members or 0)
        case "group_empty":
            return group._replace(members=0)
        case "member_joined":
            return group._replace(joined=group.joined + 1, members=row.members or 0)
        case "member_left":
            return group._replace(left=group.left + 1, members=row.members or 0)
        case "member_expired":
            return group._replace(expired=group.expired + 1, members=row.members or 0)
        case "commits":
            rate = (row["count"] or 0) * 60 / max(row.seconds or 60.0, 1.0)
            group.commits.append((row.time_ms, rate))
            lag = lag_at(row.time_ms, row.offsets or {}, topics)
            if lag is not None:
                group.lag.append((row.time_ms, lag))
    return group


def lag_at(at_ms: int, offsets: dict[str, list[list[int]]], topics: dict[str, Topic]) -> int | None:
    """Records of archived topics that were in the log and not committed by then; None: unknown."""
    lag: int | None = None
    for name, partitions in offsets.items():
        topic = topics.get(name)
        for partition, committed in partitions if topic is not None else ():
            known = topic.ends.get(partition, []) if topic is not None else []
            at = bisect.bisect_right(known, (at_ms, 1 << 62)) - 1
            if at >= 0:
                end = known[at][1]
                lost = 0 if topic is None else topic.never_in_log(partition, committed, end)
                lag = (lag or 0) + max(end - committed - lost, 0)
    return lag
