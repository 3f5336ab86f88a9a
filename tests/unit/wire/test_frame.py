"""Frames and headers: golden bytes put together by hand, and laws for what clients may send."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from moldau.broker.wire.apis import APIS, ApiKey, lookup
from moldau.broker.wire.frame import (
    LENGTH,
    read_request_header,
    read_response,
    request_frame,
    response_frame,
)
from moldau.broker.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
)
from moldau.broker.wire.messages.fetch import FetchRequest
from moldau.broker.wire.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from moldau.broker.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from moldau.broker.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from moldau.broker.wire.primitives import MalformedMessage, uvarint
from moldau.broker.wire.schema import Message

PRODUCE, FETCH, METADATA, INIT_PRODUCER_ID = 0, 1, 3, 22
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)


class Golden(NamedTuple):
    key: int
    version: int
    message: Message
    body: str  # after the header, in hexadecimal; text in quotes

    def __str__(self) -> str:
        return f"{type(self.message).__name__}-v{self.version}"

    @property
    def encoded(self) -> bytes:
        return written(self.body)


def written(text: str) -> bytes:
    return b"".join(
        word[1:-1].encode() if word.startswith("'") else bytes.fromhex(word)
        for word in text.split()
    )


REQUESTS = [
    Golden(ApiKey.API_VERSIONS, 0, ApiVersionsRequest(), ""),
    Golden(
        ApiKey.API_VERSIONS,
        3,
        ApiVersionsRequest("librdkafka", "2.16.1"),
        "0b 'librdkafka' 07 '2.16.1' 00",
    ),
    # All topics: an empty array in v0, null from v1 on.
    Golden(METADATA, 0, MetadataRequest([]), "00000000"),
    Golden(METADATA, 1, MetadataRequest(None), "ffffffff"),
    Golden(METADATA, 1, MetadataRequest([MetadataRequestTopic(name="t")]), "00000001 0001 't'"),
    Golden(
        METADATA,
        12,
        MetadataRequest([MetadataRequestTopic(name="t")], False, False, True),
        "02 00000000000000000000000000000000 02 't' 00 00 01 00",
    ),
    Golden(
        PRODUCE,
        3,
        ProduceRequest(
            "tx", 1, 30000, [TopicProduceData("t", partition_data=[PartitionProduceData(7, b"ba")])]
        ),
        "0002 'tx' 0001 00007530 00000001 0001 't' 00000001 00000007 00000002 'ba'",
    ),
    Golden(
        PRODUCE,
        9,
        ProduceRequest(
            None,
            -1,
            30000,
            [TopicProduceData("t", partition_data=[PartitionProduceData(7, b"ba")])],
        ),
        "00 ffff 00007530 02 02 't' 02 00000007 03 'ba' 00 00 00",
    ),
    Golden(
        INIT_PRODUCER_ID,
        4,
        InitProducerIdRequest(None, 60000, -1, -1),
        "00 0000ea60 ffffffffffffffff ffff 00",
    ),
    # A tagged cluster id: one tag, number 0, three bytes, a compact string.
    Golden(
        FETCH,
        12,
        FetchRequest("cl", -1, None, 500, 1, 1 << 20, 0, 0, -1, [], [], ""),
        "ffffffff 000001f4 00000001 00100000 00 00000000 ffffffff 01 01 01 01 00 03 03 'cl'",
    ),
]

RESPONSES = [
    Golden(
        ApiKey.API_VERSIONS,
        0,
        ApiVersionsResponse(35, [ApiVersion(18, 0, 4)]),
        "0023 00000001 0012 0000 0004",
    ),
    Golden(
        ApiKey.API_VERSIONS,
        3,
        ApiVersionsResponse(
            0,
            [ApiVersion(18, 0, 4)],
            finalized_features_epoch=1,
            finalized_features=[FinalizedFeatureKey("f", 2, 1)],
        ),
        "0000 02 0012 0000 0004 00 00000000 02 01 08 0000000000000001 02 08 02 02 'f' 0002 0001 00",
    ),
    Golden(
        METADATA,
        1,
        MetadataResponse(
            brokers=[MetadataResponseBroker(0, "localhost", 9092)],
            controller_id=0,
            topics=[
                MetadataResponseTopic(
                    0, "t", partitions=[MetadataResponsePartition(0, 5, 0, -1, [0], [0])]
                )
            ],
        ),
        "00000001 00000000 0009 'localhost' 00002384 ffff 00000000"
        " 00000001 0000 0001 't' 00"
        " 00000001 0000 00000005 00000000 00000001 00000000 00000001 00000000",
    ),
    Golden(
        PRODUCE,
        9,
        ProduceResponse(
            [
                TopicProduceResponse(
                    "t", partition_responses=[PartitionProduceResponse(7, 0, 42, -1, 0)]
                )
            ]
        ),
        "02 02 't' 02 00000007 0000 000000000000002a ffffffffffffffff 0000000000000000 01 00 00"
        " 00 00000000 00",
    ),
    Golden(
        INIT_PRODUCER_ID,
        4,
        InitProducerIdResponse(0, 0, 1000, 3),
        "00000000 0000 00000000000003e8 0003 00",
    ),
]


@pytest.mark.parametrize("golden", REQUESTS, ids=str)
def test_request_bytes(golden: Golden) -> None:
    api = APIS[golden.key]
    flexible = golden.version >= api.flexible_from
    head = written(f"{golden.key:04x} {golden.version:04x} 00000009 0002 'me'")
    frame = head + (b"\0" if flexible else b"") + golden.encoded
    assert request_frame(api, golden.version, 9, "me", golden.message) == (
        len(frame).to_bytes(4, "big") + frame
    )
    header = read_request_header(frame)
    assert (header.api, header.client_id, header.correlation_id) == (api, "me", 9)
    decoded = api.request_codec(golden.version).decode(frame, header.body_at)
    assert decoded == (golden.message, len(frame))


@pytest.mark.parametrize("golden", RESPONSES, ids=str)
def test_response_bytes(golden: Golden) -> None:
    api = APIS[golden.key]
    # Only ApiVersions has no tagged fields in the header of its flexible versions.
    has_tags = golden.version >= api.flexible_from and golden.key != ApiKey.API_VERSIONS
    frame = written("00000009") + (b"\0" if has_tags else b"") + golden.encoded
    parts = response_frame(api, golden.version, 9, golden.message)
    assert b"".join(parts) == len(frame).to_bytes(4, "big") + frame
    assert read_response(api, golden.version, frame) == (9, golden.message)


@given(
    key=st.integers(-(1 << 15), (1 << 15) - 1) | st.sampled_from(sorted(APIS)),
    version=st.integers(-(1 << 15), (1 << 15) - 1) | st.integers(0, 18),
    correlation_id=INT32,
    client_id=st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=300),
    rest=st.binary(max_size=20),
)
def test_any_header(
    key: int, version: int, correlation_id: int, client_id: str | None, rest: bytes
) -> None:
    name = (client_id or "").encode()
    head = key.to_bytes(2, "big", signed=True) + version.to_bytes(2, "big", signed=True)
    head += correlation_id.to_bytes(4, "big", signed=True)
    head += (-1 if client_id is None else len(name)).to_bytes(2, "big", signed=True) + name
    api = lookup(key, version)
    if api is not None and api.is_flexible(version):
        head += b"\0"
    for frame in (head + rest, bytearray(head + rest)):
        header = read_request_header(frame)
        assert (header.api_key, header.api_version) == (key, version)
        assert (header.correlation_id, header.client_id) == (correlation_id, client_id)
        assert header.api is api
        assert header.body_at == len(head)


def test_what_is_not_served_has_no_api() -> None:
    for api in APIS.values():
        for version in range(-2, api.highest + 3):
            known = api.advertised_from <= version <= api.highest
            assert lookup(api.key, version) is (api if known else None)
    assert lookup(max(APIS) + 1000, 0) is None
    assert lookup(-1, 0) is None


HEAD_V2 = written("0012 0003 00000001 0002 'me'")  # ApiVersions v3, flexible


@given(
    tags=st.lists(st.tuples(st.integers(0, 1 << 31), st.binary(max_size=40)), max_size=150),
    rest=st.binary(max_size=5),
)
@example(tags=[(n, b"x") for n in range(150)], rest=b"")  # a count of two bytes
def test_tagged_fields_of_a_header_are_skipped(tags: list[tuple[int, bytes]], rest: bytes) -> None:
    section = uvarint(len(tags)) + b"".join(
        uvarint(tag) + uvarint(len(value)) + value for tag, value in tags
    )
    header = read_request_header(HEAD_V2 + section + rest)
    assert header.body_at == len(HEAD_V2) + len(section)


@pytest.mark.parametrize(
    "frame",
    [
        "",
        "0012",
        "0012 0000 00000001",  # no client id
        "0012 0000 00000001 00",
        "0012 0000 00000001 0003 'me'",  # longer than the frame
        "0012 0000 00000001 7fff 'me'",
        "0012 0000 00000001 fffe",  # neither a length nor null
        "0012 0000 00000001 8000",
        "0012 0000 00000001 0002 ff41",  # not UTF-8
        "0012 0003 00000001 0002 'me'",  # no tagged fields
        "0012 0003 00000001 0002 'me' 01",
        "0012 0003 00000001 0002 'me' 01 00 05 'ab'",
        "0012 0003 00000001 0002 'me' ffffffff0f 00",
        "0012 0003 00000001 0002 'me' ffffffffff",
    ],
)
def test_malformed_request_headers(frame: str) -> None:
    with pytest.raises(MalformedMessage):
        read_request_header(written(frame))


@pytest.mark.parametrize(
    ("version", "frame"),
    [
        (0, ""),
        (0, "000000"),
        (0, "00000001"),
        (4, "00000001"),  # no tagged fields
        (4, "00000001 01"),
        (4, "00000001 00 00000000 0000"),
        (4, "00000001 00 00000000 0000 00000000000003e8 0003 00 00"),  # one byte more
    ],
)
def test_malformed_responses(version: int, frame: str) -> None:
    with pytest.raises(MalformedMessage):
        read_response(APIS[INIT_PRODUCER_ID], version, written(frame))


def test_a_produce_request_is_decoded_without_copying_its_batches() -> None:
    batches = [bytes([n]) * (16 << 10) for n in range(3)]
    partitions = [PartitionProduceData(n, batch) for n, batch in enumerate(batches)]
    for version in range(APIS[PRODUCE].lowest, APIS[PRODUCE].highest + 1):
        message = ProduceRequest(topic_data=[TopicProduceData(partition_data=partitions)])
        frame = bytearray(request_frame(APIS[PRODUCE], version, 1, "me", message)[LENGTH.size :])
        header = read_request_header(frame)
        request, _ = APIS[PRODUCE].request_codec(version).decode(frame, header.body_at)
        for partition, batch in zip(request.topic_data[0].partition_data, batches, strict=True):
            assert isinstance(partition.records, memoryview)
            assert partition.records.obj is frame
            assert partition.records == batch


def test_a_response_frame_knows_its_length() -> None:
    api = APIS[FETCH]
    for version in range(api.lowest, api.highest + 1):
        parts = response_frame(api, version, -1, api.response())
        (size,) = LENGTH.unpack(b"".join(parts)[:4])
        assert size == sum(map(len, parts)) - 4
