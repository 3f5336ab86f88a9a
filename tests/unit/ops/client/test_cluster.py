"""The operator's client: whom it asks again, and how it says what went wrong."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from moldau.broker.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from moldau.broker.wire.schema import Message
from moldau.ops.client import (
    LATEST,
    ClientError,
    Cluster,
    Node,
    TopicPartition,
    parse_address,
    refusal,
)

PLACE = TopicPartition("t", 0)


class Moving(Cluster):
    """Two brokers; the leader of t-0 is the second, known from the n-th Metadata on."""

    def __init__(self, known_from: int) -> None:
        super().__init__([("127.0.0.1", 1)])
        self.known_from = known_from
        self.asked: list[int] = []
        self.metadatas = 0

    def call(self, request: Message, node: Node | None = None, version: int | None = None) -> Any:
        if isinstance(request, MetadataRequest):
            assert not request.allow_auto_topic_creation
            self.metadatas += 1
            leader = 2 if self.metadatas >= self.known_from else 1
            return MetadataResponse(
                brokers=[MetadataResponseBroker(n, "127.0.0.1", n) for n in (2, 1)],
                topics=[MetadataResponseTopic(0, "t", partitions=[
                    MetadataResponsePartition(0, 0, leader)
                ])],
            )  # fmt: skip
        assert isinstance(request, ListOffsetsRequest)
        assert node is not None
        self.asked.append(node.node_id)
        error = 0 if node.node_id == 2 else ErrorCode.NOT_LEADER_OR_FOLLOWER
        answer = ListOffsetsPartitionResponse(0, error, -1, 42)
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse("t", [answer])])


def test_a_leader_that_moved_is_followed_once() -> None:
    cluster = Moving(known_from=2)
    assert cluster.list_offsets({PLACE: LATEST}) == {PLACE: 42}
    assert cluster.asked == [1, 2]


def test_a_leader_that_goes_on_moving_is_an_error_not_a_loop() -> None:
    cluster = Moving(known_from=3)
    with pytest.raises(ClientError, match=r"t-0.*NOT_LEADER_OR_FOLLOWER.*try again"):
        cluster.list_offsets({PLACE: LATEST})
    assert cluster.asked == [1, 1]


def test_a_place_that_does_not_exist_is_left_out() -> None:
    cluster = Moving(known_from=1)
    assert cluster.list_offsets({TopicPartition("t", 5): LATEST}) == {}
    assert cluster.asked == []


@pytest.mark.parametrize(
    ("text", "address"),
    [("localhost:9092", ("localhost", 9092)), ("[::1]:1", ("::1", 1))],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "localhost", ":9092", "a:0", "a:65536", "a:x", "a:²"])
def test_not_addresses(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        parse_address(text)


def test_a_refusal_prefers_the_brokers_words_and_names_codes_it_does_not_know() -> None:
    text = str(refusal("topic t", ErrorCode.INVALID_CONFIG, "x must be 1."))
    assert text.startswith("topic t: x must be 1 (INVALID_CONFIG); ")
    assert str(refusal("topic t", 999)) == "topic t: the broker refuses (error 999)"
