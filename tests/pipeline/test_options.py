"""Options of the source: accepted values, and the errors for others."""

import json
from itertools import pairwise

import pytest

from moldau.ops.client import PLAINTEXT, Security, TopicPartition
from moldau.ops.client.batches import READ_COMMITTED
from moldau.ops.client.security import Sasl, Tls
from moldau.ops.pipeline.errors import PipelineError
from moldau.ops.pipeline.source.fetch import OffsetRange
from moldau.ops.pipeline.source.offsets import (
    EARLIEST,
    LATEST,
    bundles,
    from_nested,
    parse,
    rate_limited,
    split,
    to_nested,
)
from moldau.ops.pipeline.source.options import Boundary, Options, read_options

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def options(**given: str) -> Options:
    written = {key.replace("__", "."): value for key, value in given.items()}
    return read_options({"kafka.bootstrap.servers": "h:1", **written})


def refused(**given: str) -> str:
    with pytest.raises(PipelineError) as caught:
        options(**given)
    return str(caught.value)


def test_defaults_are_those_of_sparks_own_source() -> None:
    made = options(subscribe="a, b")
    assert made.subscribe == ("a", "b")
    assert made.batch_starting == Boundary("startingOffsets", None, EARLIEST)
    assert made.stream_starting == Boundary("startingOffsets", None, LATEST)
    assert made.ending == Boundary("endingOffsets", None, LATEST)
    assert made.fetch.fail_on_data_loss
    assert made.fetch.bootstrap == (("h", 1),)
    assert not made.headers


def test_unreadable_batches_are_skipped_where_data_loss_is_allowed() -> None:
    assert options(subscribe="a").on_unreadable == "fail"
    assert options(subscribe="a", failOnDataLoss="false").on_unreadable == "skip"
    given = options(subscribe="a", failOnDataLoss="false", onUnreadable="FAIL")
    assert given.on_unreadable == "fail"


def test_exactly_one_way_to_name_topics() -> None:
    assert "exactly one of" in refused()
    assert "2 are given" in refused(subscribe="a", assign='{"a": [0]}')
    assert options(assign='{"a": [1, 0]}').assign == (A0, A1)
    assert options(subscribePattern="a.*").pattern == "a.*"
    assert "subscribePattern" in refused(subscribePattern="a(")
    assert "assign" in refused(assign="a,b")


def test_names_are_case_insensitive_and_misspelt_ones_refused() -> None:
    assert options(SUBSCRIBE="a", STARTINGOFFSETS="earliest").stream_starting.all == EARLIEST
    assert "startingoffset'" in refused(subscribe="a", startingOffset="earliest")


def test_timestamps_come_before_offsets() -> None:
    text = '{"a": {"0": 5}}'
    made = options(subscribe="a", startingOffsets="earliest", startingOffsetsByTimestamp=text)
    assert made.stream_starting == Boundary("startingOffsetsByTimestamp", {A0: 5}, by_time=True)
    made = options(subscribe="a", startingTimestamp="17", startingOffsetsByTimestamp=text)
    assert made.batch_starting == Boundary("startingTimestamp", None, 17, by_time=True)


def test_values_that_make_no_sense() -> None:
    assert "earliest" in refused(subscribe="a", endingOffsets="earliest")
    assert "earliest" in refused(subscribe="a", endingOffsets='{"a": {"0": -2}}')
    assert "JSON" in refused(subscribe="a", startingOffsets="yesterday")
    assert "above 0" in refused(subscribe="a", maxOffsetsPerTrigger="0")
    assert "number" in refused(subscribe="a", minPartitions="-3")
    assert "true or false" in refused(subscribe="a", failOnDataLoss="perhaps")
    assert "error or latest" in refused(subscribe="a", startingOffsetsByTimestampStrategy="x")
    assert "fail or skip" in refused(subscribe="a", onUnreadable="ignore")
    assert "HOST:PORT" in refused(subscribe="a", kafka__bootstrap__servers="nowhere")


def test_kafkas_own_settings_are_passed_through_or_refused() -> None:
    made = options(
        subscribe="a",
        kafka__isolation__level="read_committed",
        kafka__max__partition__fetch__bytes="1000",
        kafka__check__crcs="false",
        kafka__client__id="me",
        kafkaConsumer__pollTimeoutMs="5000",
        kafka__something__of__java="x",
    )
    assert made.fetch.isolation == READ_COMMITTED
    assert made.fetch.max_bytes == 1000
    assert not made.fetch.check_crcs
    assert made.fetch.client_id == "me"
    assert made.fetch.patience_s == 5
    assert "startingOffsets" in refused(subscribe="a", kafka__auto__offset__reset="earliest")


def test_security_as_sparks_own_source_has_it() -> None:
    assert options(subscribe="a").fetch.security == PLAINTEXT
    made = options(
        subscribe="a",
        kafka__security__protocol="SASL_SSL",
        kafka__sasl__mechanism="SCRAM-SHA-512",
        kafka__sasl__jaas__config='x.ScramLoginModule required username="a" password="secret";',
        kafka__ssl__truststore__location="/ca.pem",
    )
    sasl = Sasl("SCRAM-SHA-512", "a", "secret")
    assert made.fetch.security == Security(Tls(ca_file="/ca.pem"), sasl)
    assert "secret" not in repr(made)
    assert "sasl.mechanism" in refused(subscribe="a", kafka__security__protocol="SASL_SSL")
    assert "did you mean" in refused(subscribe="a", kafka__ssl__truststore__locaton="x")


def test_offsets_as_json() -> None:
    nested = {"a": {"0": 23, "1": -2}, "b": {"0": -1}}
    assert parse("x", json.dumps(nested)) == {A0: 23, A1: -2, B0: -1}
    assert to_nested(from_nested(nested)) == nested


def test_a_limit_is_shared_by_lag_and_no_partition_starves() -> None:
    starts, ends = {A0: 0, A1: 100, B0: 7}, {A0: 900, A1: 200, B0: 7}
    assert rate_limited(starts, ends, 100) == {A0: 90, A1: 110, B0: 7}
    assert rate_limited(starts, ends, 5000) == ends
    tiny = rate_limited({A0: 0, A1: 0}, {A0: 1_000_000, A1: 1}, 10)
    assert tiny[A1] == 1


def test_pieces_cover_ranges_exactly() -> None:
    ranges = [OffsetRange(A0, 5, 1005), OffsetRange(A1, 0, 10), OffsetRange(B0, 3, 3)]
    for pieces in (split(ranges, 7), split(ranges, 0, 33), split(ranges, 50, 900), split(ranges)):
        for one in ranges[:2]:
            edges = [piece[1:] for piece in pieces if piece.topic_partition == one.topic_partition]
            assert edges[0][0] == one.start
            assert edges[-1][1] == one.end
            assert all(left[1] == right[0] for left, right in pairwise(edges))
            assert all(start < end for start, end in edges)
        assert not any(piece.topic_partition == B0 for piece in pieces)
    assert len(split(ranges, 7)) >= 7
    assert max(piece.size for piece in split(ranges, 0, 33)) <= 33


def test_bundles_are_even_and_lose_nothing() -> None:
    ranges = [OffsetRange(TopicPartition("t", index), 0, 100) for index in range(12)]
    made = bundles(ranges, 4)
    assert [one.size for one in made] == [300] * 4
    assert sorted(one for bundle in made for one in bundle.ranges) == ranges
    assert len(bundles(ranges, 100)) == 12
    assert bundles([], 3) == []
    uneven = [OffsetRange(A0, 0, 1000), OffsetRange(A1, 0, 1), OffsetRange(B0, 0, 1)]
    assert sorted(one for bundle in bundles(uneven, 3) for one in bundle.ranges) == uneven
