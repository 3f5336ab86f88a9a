"""WriteTxnMarkers: API key 27, versions 1 to 2."""

from __future__ import annotations

from typing import Annotated

from moldau.broker.wire.schema import (
    NO_UUID,
    Bool,
    Bytes,
    F,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    String,
    Uuid,
)


class WritableTxnMarkerTopic(Message):
    name: String = ""
    partition_indexes: list[Int32] = []
    # Ours: a topic that was deleted and created again must not get the markers of the old one.
    # It is written only if set, and other readers skip tags they do not know.
    topic_id: Annotated[Uuid, F(since=2, tag=100)] = NO_UUID


class WritableTxnMarker(Message):
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    transaction_result: Bool = False
    topics: list[WritableTxnMarkerTopic] = []
    coordinator_epoch: Int32 = 0
    transaction_version: Annotated[Int8, F(since=2)] = 0


class WriteTxnMarkersRequest(Message):
    markers: list[WritableTxnMarker] = []
    # Ours: the id of the store that the worker sees which asks.
    store_id: Annotated[Bytes, F(since=1, tag=100)] = b""


class WritableTxnMarkerPartitionResult(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class WritableTxnMarkerTopicResult(Message):
    name: String = ""
    partitions: list[WritableTxnMarkerPartitionResult] = []


class WritableTxnMarkerResult(Message):
    producer_id: Int64 = 0
    topics: list[WritableTxnMarkerTopicResult] = []


class WriteTxnMarkersResponse(Message):
    markers: list[WritableTxnMarkerResult] = []
