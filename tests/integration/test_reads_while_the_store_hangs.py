"""What consumers are answered while the store is connected but does not reply.

Java's consumer throws IllegalStateException at a Fetch that answers REQUEST_TIMED_OUT, and takes a
topic that is reported as unknown for deleted. Every client retries KAFKA_STORAGE_ERROR silently.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.broker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from moldau.broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.broker.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from moldau.broker.wire.schema import Message
from tests.support.brokers.running import Broker, running_broker
from tests.support.raw.calls import create_topic
from tests.support.raw.client import NAMED_FETCH, RawClient

UNKNOWN_ID = bytes(range(16))


@pytest.fixture
def broker() -> Iterator[Broker]:
    # Of an external store the lease would end first, and close the connections.
    with running_broker(workers=1) as started:
        yield started


def _fetch(topic: str = "", topic_id: bytes = bytes(16)) -> FetchRequest:
    wanted = FetchPartition(0, fetch_offset=0, partition_max_bytes=1 << 20)
    return FetchRequest(max_wait_ms=100, topics=[FetchTopic(topic, topic_id, [wanted])])


def test_a_store_that_hangs_is_a_storage_error(broker: Broker) -> None:
    port = broker.processes("worker")[0]["port"]
    with RawClient(port) as client:
        create_topic(client, "plain")
        create_topic(client, "native", {"moldau.storage": "native"})
        (known,) = client.call(MetadataRequest([MetadataRequestTopic(name="plain")])).topics
    list_offsets = ListOffsetsRequest(
        topics=[ListOffsetsTopic("plain", [ListOffsetsPartition(0, timestamp=-1)])]
    )
    of_epoch = OffsetForLeaderEpochRequest(
        topics=[OffsetForLeaderTopic("plain", [OffsetForLeaderPartition(0)])]
    )
    asked: dict[str, tuple[Message, int | None]] = {
        "a log that is not loaded": (_fetch("plain"), NAMED_FETCH),
        "the same by its id": (_fetch(topic_id=known.topic_id), None),
        "a native log": (_fetch("native"), NAMED_FETCH),
        "a topic that is not known here": (_fetch("other"), NAMED_FETCH),
        "an id that is not known here": (_fetch(topic_id=UNKNOWN_ID), None),
        "offsets": (list_offsets, None),
        "the end of an epoch": (of_epoch, None),
    }
    clients = {what: RawClient(port, timeout=90) for what in asked}
    store = broker.kill("store", number=signal.SIGSTOP)
    try:
        for what, (request, version) in asked.items():
            clients[what].send(request, version)
        codes = {what: _error_in(clients[what].receive()) for what in asked}
        assert codes == dict.fromkeys(asked, ErrorCode.KAFKA_STORAGE_ERROR)
    finally:
        os.kill(store, signal.SIGCONT)
        for client in clients.values():
            client.close()


def _error_in(response: object) -> int:
    """The only error code of a response about one partition."""
    for name in ("responses", "topics", "partitions"):
        inside = getattr(response, name, None)
        if inside:
            assert getattr(response, "error_code", 0) == 0
            return _error_in(inside[0])
    code: int = getattr(response, "error_code")  # noqa: B009
    return code
