"""Fetch over real workers: whole batches from the right place, limits, offsets out of range.

Section 5 of Kafka's behaviours carries its number. A worker that appended a batch serves it from
memory, any other worker from the store: both are asked wherever that matters.
"""

import os

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from moldau.broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.support.brokers.running import wait_until
from tests.support.raw.calls import delete_records
from tests.support.raw.client import NAMED_FETCH, RawClient, batches_in, make_batch
from tests.support.raw.fetching import LONG_MS, Where, offsets, produce_request

# --- whole batches, from the right place ---


def test_5_fetch_from_the_start_gives_everything_as_it_was_stored(where: Where) -> None:
    where.fill(3, 1, 5)
    blobs = []
    for client in where.everywhere():
        answer = client.fetch(where.topic, 0)
        assert offsets(answer) == [(0, 3), (3, 4), (4, 9)]
        assert (answer.high_watermark, answer.last_stable_offset) == (9, 9)
        assert answer.log_start_offset == 0
        blobs.append(b"".join(map(bytes, batches_in(answer))))
    assert len(set(blobs)) == 1


def test_5_6_4_fetch_in_the_middle_of_a_batch_gives_the_whole_batch(where: Where) -> None:
    where.fill(10, 10, 10)
    for client in where.everywhere():
        for offset, first in ((0, 0), (5, 0), (9, 0), (10, 10), (19, 10), (25, 20), (29, 20)):
            answer = client.fetch(where.topic, offset)
            assert offsets(answer)[0] == (first, first + 10)
            assert offsets(answer)[-1] == (20, 30)


def test_5_6_4_in_the_middle_of_an_entry_that_holds_many_batches(where: Where) -> None:
    """Batches that arrive together are stored together, and still served one by one."""
    sent = 40
    batch = make_batch([(None, os.urandom(50), 1) for _ in range(3)])
    for _ in range(sent):
        where.leader.send(produce_request(where.topic, batch), 12)
    for _ in range(sent):
        where.leader.receive()
    for client in where.everywhere():
        for offset in range(0, sent * 3, 7):
            answer = client.fetch(where.topic, offset, max_bytes=len(batch) * 2)
            first = offset - offset % 3
            expected = [(first, first + 3), (first + 3, first + 6)]
            assert offsets(answer) == expected[: (sent * 3 - first) // 3]


def test_5_limits_cut_at_the_edge_of_a_batch(where: Where) -> None:
    sizes = where.fill(*[2] * 8)
    for client in where.everywhere():
        for limit, expected in (
            (sizes[0], 1),
            (sizes[0] * 2 - 1, 1),
            (sizes[0] * 2, 2),
            (sizes[0] * 5 + 1, 5),
            (1 << 20, 8),
        ):
            answer = client.fetch(where.topic, 0, max_bytes=limit)
            assert len(offsets(answer)) == expected


@pytest.mark.parametrize("limit", [0, 1, 60])
def test_5_the_first_batch_comes_whole_even_when_larger_than_the_limits(
    where: Where, limit: int
) -> None:
    where.fill(5, 5)
    for client in where.everywhere():
        assert offsets(client.fetch(where.topic, 0, max_bytes=limit)) == [(0, 5)]
        assert offsets(client.fetch(where.topic, 7, max_bytes=limit)) == [(5, 10)]
        wanted = FetchPartition(0, fetch_offset=0, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_bytes=limit, topics=[FetchTopic(where.topic, partitions=[wanted])]
        )
        answer = client.call(request, NAMED_FETCH).responses[0].partitions[0]
        assert offsets(answer) == [(0, 5)]


def test_5_the_limit_of_the_whole_answer_spans_partitions(workers: list[RawClient]) -> None:
    where = Where(workers, partitions=4)
    for partition in range(4):
        where.fill(*[1] * 10, size=1_000, partition=partition)
    batch = where.fill(1, size=1_000)[0]
    for client in where.everywhere():
        for limit, most in ((batch * 3, 3), (1, 1), (batch * 25, 25)):
            answer = _fetch_all(client, where.topic, 4, limit)
            found = [len(offsets(part)) for part in answer.responses[0].partitions]
            assert sum(found) <= most
            assert found[0] >= 1
            assert all(part.error_code == 0 for part in answer.responses[0].partitions)
        everything = _fetch_all(client, where.topic, 4, 1 << 24)
        assert [len(offsets(part)) for part in everything.responses[0].partitions] == [
            11,
            10,
            10,
            10,
        ]


def _fetch_all(client: RawClient, topic: str, partitions: int, limit: int) -> FetchResponse:
    wanted = [
        FetchPartition(number, fetch_offset=0, partition_max_bytes=1 << 20)
        for number in range(partitions)
    ]
    request = FetchRequest(max_bytes=limit, topics=[FetchTopic(topic, partitions=wanted)])
    response: FetchResponse = client.call(request, NAMED_FETCH)
    return response


# --- out of range ---


def test_5_beyond_the_end_and_below_the_start_is_out_of_range(where: Where) -> None:
    where.fill(10)
    assert delete_records(where.leader, where.topic, 4).low_watermark == 4
    for client in where.everywhere():
        wait_until(
            lambda client=client: client.fetch(where.topic, 4).log_start_offset == 4,  # type: ignore[misc]
            10,
            "every worker knows the new start",
        )
        for offset in (-1, 0, 3, 11, 1 << 40):
            answer = client.fetch(where.topic, offset, max_wait_ms=LONG_MS, min_bytes=1)
            assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
            assert not answer.records
            assert (answer.high_watermark, answer.log_start_offset) == (10, 4)
        assert client.fetch(where.topic, 10).error_code == 0


def test_5_what_another_worker_appended_a_moment_ago_is_not_out_of_range(where: Where) -> None:
    """The leader hears of it a moment later; until then it looks for itself."""
    for number in range(150):
        writer = (where.other, where.third)[number % 2]
        written = writer.produce(where.topic, make_batch([(None, b"x", 1)])).base_offset
        for client in where.everywhere():
            answer = client.fetch(where.topic, written + 1)
            assert answer.error_code == 0, (number, answer)
            assert answer.high_watermark == written + 1


def test_unknown_partitions_topics_and_leader_epochs(where: Where) -> None:
    client = where.leader
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert client.fetch(where.topic, 0, partition=7).error_code == unknown
    assert client.fetch("no-such-topic", 0).error_code == unknown
    by_id = FetchTopic(topic_id=bytes(range(16)), partitions=[FetchPartition(0)])
    answer = client.call(FetchRequest(topics=[by_id])).responses[0].partitions[0]
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    newer = FetchPartition(0, current_leader_epoch=5)
    request = FetchRequest(topics=[FetchTopic(where.topic, partitions=[newer])])
    answer = client.call(request, NAMED_FETCH).responses[0].partitions[0]
    assert answer.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


@pytest.mark.parametrize("version", range(4, 19))
def test_1_5_every_version_and_no_fetch_sessions(where: Where, version: int) -> None:
    where.fill(2)
    topic = FetchTopic(where.topic)
    if version >= 13:
        asked = MetadataRequest([MetadataRequestTopic(name=where.topic)])
        topic = FetchTopic(topic_id=where.leader.call(asked).topics[0].topic_id)
    topic.partitions = [FetchPartition(0, partition_max_bytes=1 << 20)]
    request = FetchRequest(max_wait_ms=100, min_bytes=1, session_epoch=0, topics=[topic])
    answer = where.leader.call(request, version)
    assert answer.session_id == 0
    assert offsets(answer.responses[0].partitions[0]) == [(0, 2)]
