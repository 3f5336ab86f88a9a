"""Thousands of topics and groups in a broker within seconds: many requests, few round trips.

populate(broker.port, topics=2_000, groups=10_000)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from moldau.broker.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from moldau.broker.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from moldau.broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from moldau.broker.wire.schema import Message
from tests.support.raw.client import NAMED_PRODUCE, RawClient, make_batch

CREATED_AT_A_TIME = 200
IN_FLIGHT = 50
NAMED_COMMIT = 9
RECORDS = 10  # of the first partition of every topic


def topic_name(number: int) -> str:
    return f"populated-{number:05}"


def group_name(number: int) -> str:
    return f"crowd-{number:05}"


def populate(
    port: int, *, topics: int, groups: int, partitions: int = 3, topics_of_group: int = 2
) -> None:
    """Topics with a few records, and groups that have committed offsets of some of them.

    Group n has read topics n, n + 1, … (of as many as there are): each topic has about
    `groups * topics_of_group / topics` of them.
    """
    with RawClient(port, timeout=120) as client:
        for first in range(0, topics, CREATED_AT_A_TIME):
            numbers = range(first, min(first + CREATED_AT_A_TIME, topics))
            wanted = [CreatableTopic(topic_name(number), partitions, 1) for number in numbers]
            for made in client.call(CreateTopicsRequest(wanted, 60_000)).topics:
                assert made.error_code == 0, made
        batch = make_batch([(b"k", b"v" * 50, 1_700_000_000_000)] * RECORDS)
        for answer in _pipelined(client, _produced(topics, bytes(batch)), NAMED_PRODUCE):
            (done,) = answer.responses[0].partition_responses
            assert done.error_code == 0, done
        commits = _commits(groups, topics, partitions, topics_of_group)
        for answer in _pipelined(client, commits, NAMED_COMMIT):
            for topic in answer.topics:
                assert not any(each.error_code for each in topic.partitions), topic


def _produced(topics: int, batch: bytes) -> Iterator[Message]:
    for number in range(topics):
        data = [PartitionProduceData(0, memoryview(batch))]
        yield ProduceRequest(
            acks=-1,
            timeout_ms=60_000,
            topic_data=[TopicProduceData(name=topic_name(number), partition_data=data)],
        )


def _commits(groups: int, topics: int, partitions: int, each: int) -> Iterator[Message]:
    for number in range(groups):
        offset = number % (RECORDS + 1)
        committed = [
            OffsetCommitRequestTopic(
                topic_name((number + step) % topics),
                partitions=[
                    OffsetCommitRequestPartition(index, 0 if index else offset)
                    for index in range(partitions)
                ],
            )
            for step in range(each)
        ]
        yield OffsetCommitRequest(group_name(number), topics=committed)


def _pipelined(client: RawClient, requests: Iterable[Message], version: int) -> Iterator[Any]:
    """The answers, with some requests always under way."""
    under_way = 0
    for request in requests:
        client.send(request, version)
        under_way += 1
        if under_way == IN_FLIGHT:
            yield client.receive()
            under_way -= 1
    for _ in range(under_way):
        yield client.receive()
