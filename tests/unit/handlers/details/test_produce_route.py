"""Requests recognised by their bytes: what is found that way is what the decoder would find."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.broker.broker import Broker
from moldau.broker.handlers.details.produce_route import PRODUCE, ProduceRoute
from moldau.broker.log.partition import PartitionLog
from moldau.broker.server.call import Call
from moldau.broker.settings.kafka import topic_config
from moldau.broker.store.topics import TopicRecord
from moldau.broker.topics.topics import Topic
from moldau.broker.wire.frame import CORRELATION_ID_END, read_request_header, request_frame
from moldau.broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

TOPIC_ID = bytes(range(16))
VERSIONS = range(3, PRODUCE.highest + 1)


class Seen(ProduceRoute):
    """Notes the batches instead of appending them."""

    def start(self, call: Call, records: Any) -> None:
        self.batches.append(bytes(records))

    batches: list[bytes]


def produce(
    version: int,
    batch: bytes | None,
    correlation_id: int = 1,
    client: str | None = "c",
    **fields: Any,
) -> bytearray:
    """A frame, without its length."""
    item = PartitionProduceData(fields.get("index", 3), batch)
    topic = TopicProduceData(fields.get("name", "orders"), TOPIC_ID, [item])
    request = ProduceRequest(None, fields.get("acks", -1), fields.get("timeout_ms", 1_000), [topic])
    return bytearray(request_frame(PRODUCE, version, correlation_id, client, request)[4:])


def route_of(frame: bytearray, **log: Any) -> Seen:
    header = read_request_header(frame)
    request, _ = PRODUCE.request_codec(header.api_version).decode(frame, header.body_at)
    assert isinstance(request, ProduceRequest)
    record = TopicRecord("orders", TOPIC_ID, 10, 0, 0)
    made = Seen(
        cast("Broker", SimpleNamespace()),
        header,
        request,
        Topic(record, topic_config({})),
        cast("PartitionLog", SimpleNamespace(is_gone=False, **log)),
    )
    made.batches = []
    return made


def served(route: Seen, frame: bytearray) -> bytes | None:
    """The batch found in a frame, None when it is left to the decoder."""
    if route.matches(frame, 0, len(frame)) and route.serve(cast("Call", None), frame):
        return route.batches[-1]
    return None


@given(
    st.sampled_from(VERSIONS),
    st.none() | st.text(max_size=200),
    # Long ones, whose lengths take more bytes, of what is quickly made up.
    st.lists(
        st.binary(max_size=300) | st.integers(16_000, 16_500).map(bytes), min_size=2, max_size=8
    ),
)
def test_a_repeated_request_is_understood_as_the_decoder_does(
    version: int, client: str | None, batches: list[bytes]
) -> None:
    first = produce(version, batches[0], client=client)
    route = route_of(first)
    assert route.learn(first)
    for number, batch in enumerate(batches):
        frame = produce(version, batch, number, client)
        assert served(route, frame) == batch
        assert route.header_of(frame) == read_request_header(frame)


@pytest.mark.parametrize(
    "other",
    [{"index": 4}, {"name": "ordets"}, {"acks": 1}, {"timeout_ms": 1_001}, {"client": "d"}],
    ids=str,
)
@pytest.mark.parametrize("version", VERSIONS)
def test_another_request_is_not_taken_for_it(version: int, other: dict[str, Any]) -> None:
    if "name" in other and version >= 13:
        pytest.skip("topics have ids there")
    first = produce(version, b"batch")
    route = route_of(first)
    assert route.learn(first)
    assert served(route, produce(version, b"batch", **other)) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_another_version_is_not_taken_for_it(version: int) -> None:
    first = produce(version, b"batch")
    route = route_of(first)
    assert route.learn(first)
    for another in set(VERSIONS) - {version}:
        assert served(route, produce(another, b"batch")) is None


@given(st.binary(max_size=60), st.integers(0, 80), st.sampled_from([3, 9]))
def test_what_follows_the_known_part_may_be_anything(
    garbage: bytes, cut: int, version: int
) -> None:
    """Then it is the decoder's to refuse, or to understand."""
    first = produce(version, b"x" * 40)
    route = route_of(first)
    assert route.learn(first)
    for frame in (
        first[: max(len(first) - cut, CORRELATION_ID_END + len(route.prefix))] + garbage,
        first + garbage,
    ):
        found = served(route, frame)
        if found is not None:
            header = read_request_header(frame)
            decoded, end = PRODUCE.request_codec(version).decode(frame, header.body_at)
            assert isinstance(decoded, ProduceRequest)
            records = decoded.topic_data[0].partition_data[0].records
            assert isinstance(records, memoryview)
            assert (bytes(records), end) == (found, len(frame))


def test_a_request_without_a_batch_is_left_to_the_decoder() -> None:
    route = route_of(produce(9, b"batch"))
    assert route.learn(produce(9, b"batch"))
    assert served(route, produce(9, None)) is None


def test_a_deleted_topic_is_left_to_the_decoder() -> None:
    frame = produce(9, b"batch")
    route = route_of(frame)
    assert route.learn(frame)
    route.log = cast("PartitionLog", SimpleNamespace(is_gone=True))
    assert served(route, frame) is None


def test_replicas_to_wait_for_are_left_to_the_decoder() -> None:
    frame = produce(9, b"batch")
    route = route_of(frame)
    assert route.learn(frame)
    route.topic.config = topic_config({"min.insync.replicas": "2"})
    assert served(route, frame) is None


def test_a_request_written_otherwise_is_not_remembered() -> None:
    """Tagged fields in the header, say: legal, and not how any client writes it."""
    frame = produce(9, b"batch")
    at = 10 + len("c")
    assert frame[at] == 0
    tagged = frame[:at] + b"\x01\x07\x01\x2a" + frame[at + 1 :]
    route = route_of(bytearray(tagged))
    assert not route.learn(bytearray(tagged))
