"""Groups of Kafka and of Redis, side by side."""

from __future__ import annotations

from moldau.broker.private.stream_views import ConsumerView, GroupView, PendingView, StreamView
from moldau.ops.console.index import TopicGroup
from moldau.ops.console.streams import Stream, age_of, sides

NOW = 1_794_963_403_000


def group(name: str, lag: int | None, *pending: int) -> GroupView:
    entries = [PendingView(f"{NOW - age}-0", "c", 5, 1) for age in pending]
    consumers = [ConsumerView("c", len(pending), 7)]
    return GroupView(name, 1, len(pending), "0-0", None, lag, consumers, entries)


def test_a_group_is_one_over_all_partitions() -> None:
    streams = [
        Stream(0, "s:0", StreamView("stream", groups=[group("both", 3, 100), group("redis", 0)])),
        Stream(1, "s:1", StreamView("stream", groups=[group("both", 4, 900, 50)])),
    ]
    kafka = [TopicGroup("both", "Stable", 2, 9, 1.0), TopicGroup("kafka", "Empty", 0, 5, None)]
    both, only_kafka, only_redis = sides(streams, kafka, NOW)
    assert (both.name, both.lag, both.pending, both.consumers) == ("both", 7, 3, 1)
    assert both.kafka == kafka[0]
    assert both.oldest is not None
    assert (both.oldest.partition, both.oldest.age_ms) == (1, 900)
    assert [each.age_ms for each in both.shown_pending] == [900, 100, 50]
    assert (only_kafka.name, only_kafka.in_redis, only_kafka.lag) == ("kafka", False, None)
    assert (only_redis.name, only_redis.kafka, only_redis.lag) == ("redis", None, 0)


def test_a_lag_that_redis_does_not_know_is_unknown_as_a_whole() -> None:
    streams = [
        Stream(0, "s:0", StreamView("stream", groups=[group("g", 3)])),
        Stream(1, "s:1", StreamView("stream", groups=[group("g", None)])),
    ]
    (side,) = sides(streams, [], NOW)
    assert side.lag is None


def test_ids_that_are_no_times_have_no_age() -> None:
    assert age_of("5-1", NOW) is None
    assert age_of(f"{NOW * 2}-0", NOW) is None
    assert age_of(f"{NOW - 1500}-3", NOW) == 1500
