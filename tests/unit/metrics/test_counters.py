"""What workers count, and the families made of it."""

from __future__ import annotations

from moldau.broker.coordinator.groups.events import GroupCounters
from moldau.broker.errors import ErrorCode
from moldau.broker.group.effects import MemberChange, MemberChanged, StateChanged
from moldau.broker.group.states import GroupState
from moldau.broker.metrics.document import Family
from moldau.broker.metrics.log_counters import MAX_TOPICS, LogCounters
from moldau.broker.metrics.request_counters import RequestCounters
from moldau.broker.wire.apis import ApiKey
from moldau.broker.wire.messages.heartbeat import HeartbeatResponse
from moldau.broker.wire.messages.metadata import MetadataResponse, MetadataResponseTopic
from moldau.broker.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)


def samples(families: list[Family], name: str) -> dict[tuple[str, ...], float]:
    (family,) = [each for each in families if each.name == name]
    return {sample.labels: sample.value for sample in family.samples}


def test_error_codes_are_found_at_every_depth() -> None:
    counters = RequestCounters()
    refused = PartitionProduceResponse(0, ErrorCode.NOT_ENOUGH_REPLICAS)
    fine = PartitionProduceResponse(1)
    topic = TopicProduceResponse("t", partition_responses=[refused, fine, refused])
    counters.count_errors(ApiKey.PRODUCE, ProduceResponse([topic]))
    unknown = MetadataResponseTopic(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "u")
    counters.count_errors(ApiKey.METADATA, MetadataResponse(topics=[unknown]))
    counters.count_errors(ApiKey.HEARTBEAT, HeartbeatResponse())
    counters.count_errors(ApiKey.HEARTBEAT, HeartbeatResponse(error_code=9999))
    assert samples(counters.families(), "moldau_kafka_request_errors_total") == {
        ("Produce", "NOT_ENOUGH_REPLICAS"): 2,
        ("Metadata", "UNKNOWN_TOPIC_OR_PARTITION"): 1,
        ("Heartbeat", "9999"): 1,
    }


def test_only_apis_that_were_used_have_a_series() -> None:
    counters = RequestCounters()
    counters.at_once[ApiKey.HEARTBEAT] += 3
    counters.durations[ApiKey.FETCH][20] += 2
    assert samples(counters.families(), "moldau_kafka_requests_total") == {
        ("Fetch",): 2,
        ("Heartbeat",): 3,
    }


def test_entries_are_counted_by_their_batches() -> None:
    counters = LogCounters()
    for batches in (1, 1, 2, 3, 4, 5000):
        counters.batches[batches.bit_length()] += 1
    (family,) = [f for f in counters.families(7) if f.name == "moldau_append_batches"]
    (histogram,) = family.histograms
    below = [sum(histogram.counts[: at + 1]) for at in range(len(family.bounds))]
    assert family.bounds[:3] == [1, 3, 7]
    assert below[:3] == [2, 4, 5]
    assert sum(histogram.counts) == 6
    assert samples(counters.families(7), "moldau_tail_cache_bytes") == {(): 7}


def test_topics_are_bounded() -> None:
    counters = LogCounters()
    for number in range(MAX_TOPICS + 5):
        counters.topic(f"t{number}").bytes_out += 1
    assert len(samples(counters.families(0), "moldau_topic_bytes_out_total")) == MAX_TOPICS
    assert counters.topic("t0").bytes_out == 1


def test_rebalances_are_counted_by_a_few_reasons_and_once_each() -> None:
    counters = GroupCounters()

    def moved(state: GroupState, reason: str, now_ms: int) -> None:
        change = StateChanged("g", GroupState.STABLE, state, 1, 1, reason)
        counters.changed(change, now_ms)

    moved(GroupState.PREPARING_REBALANCE, "member a-1 joined", 0)
    moved(GroupState.PREPARING_REBALANCE, "member b-2 left", 10)
    moved(GroupState.STABLE, "", 40)
    moved(GroupState.PREPARING_REBALANCE, "member a-1 expired", 50)
    counters.changed(MemberChanged("g", MemberChange.EXPIRED, "a-1", None, "a", "/h", 0), 50)
    assert samples(counters.families(), "moldau_consumergroup_rebalances_total") == {
        ("g", "joined"): 1,
        ("g", "expired"): 1,
    }
    assert samples(counters.families(), "moldau_group_heartbeats_expired_total") == {(): 1}
    (durations,) = [f for f in counters.families() if "duration" in f.name]
    assert 0.02 < durations.histograms[0].total < 0.08  # of 40 ms, by its bucket
    moved(GroupState.DEAD, "deleted", 60)
    assert samples(counters.families(), "moldau_consumergroup_rebalances_total") == {}
