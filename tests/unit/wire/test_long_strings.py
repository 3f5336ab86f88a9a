"""Strings have 32,767 bytes at most, in every version: as Kafka reads them, and writes them."""

from __future__ import annotations

import pytest

from moldau.broker.wire.apis import APIS, ApiKey
from moldau.broker.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from moldau.broker.wire.primitives import MAX_STRING, MalformedMessage

API = APIS[ApiKey.CREATE_PARTITIONS]
EVERY_VERSION = range(API.lowest, API.highest + 1)


@pytest.mark.parametrize("version", EVERY_VERSION)
def test_error_messages_are_cut(version: int) -> None:
    codec = API.response_codec(version)
    for text in ("x" * MAX_STRING, "x" * (MAX_STRING + 1), "é" * MAX_STRING, "x" + "😀" * 30_000):
        result = CreatePartitionsTopicResult("topic", 37, text)
        out: list[bytes | bytearray | memoryview] = []
        codec.encode(CreatePartitionsResponse(results=[result]), out)
        response, _ = codec.decode(b"".join(out), 0)
        (answer,) = response.results
        assert text.startswith(answer.error_message)
        assert MAX_STRING - 4 < len(answer.error_message.encode()) <= MAX_STRING


@pytest.mark.parametrize("version", EVERY_VERSION)
def test_longer_ones_are_not_taken(version: int) -> None:
    codec = API.request_codec(version)

    def sent(name: str) -> bytes:
        out: list[bytes | bytearray | memoryview] = []
        codec.encode(CreatePartitionsRequest([CreatePartitionsTopic(name, 3)]), out)
        return b"".join(out)

    request, _ = codec.decode(sent("x" * MAX_STRING), 0)
    assert len(request.topics[0].name) == MAX_STRING
    if API.is_flexible(version):
        with pytest.raises(MalformedMessage, match="a string of 32768 bytes"):
            codec.decode(sent("x" * (MAX_STRING + 1)), 0)
