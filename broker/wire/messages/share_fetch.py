"""ShareFetch: API key 78, versions 1 to 2."""

from __future__ import annotations

from typing import Annotated

import msgspec

from moldau.broker.wire.messages.share_acknowledge import (
    AcknowledgementBatch,
    LeaderIdAndEpoch,
    NodeEndpoint,
)
from moldau.broker.wire.schema import (
    NEVER,
    Bool,
    F,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Records,
    String,
    Uuid,
)


class FetchPartition(Message):
    partition_index: Int32 = 0
    acknowledgement_batches: list[AcknowledgementBatch] = []


class FetchTopic(Message):
    topic_id: Uuid = bytes(16)
    partitions: list[FetchPartition] = []


class ForgottenTopic(Message):
    topic_id: Uuid = bytes(16)
    partitions: list[Int32] = []


class ShareFetchRequest(Message):
    group_id: String | None = None
    member_id: String | None = ""
    share_session_epoch: Int32 = 0
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = (1 << 31) - 1
    max_records: Int32 = 0
    batch_size: Int32 = 0
    share_acquire_mode: Annotated[Int8, F(since=2)] = 0
    is_renew_ack: Annotated[Bool, F(since=2)] = False
    topics: list[FetchTopic] = []
    forgotten_topics_data: list[ForgottenTopic] = []


class AcquiredRecords(Message):
    first_offset: Int64 = 0
    last_offset: Int64 = 0
    delivery_count: Int16 = 0


class PartitionData(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    acknowledge_error_code: Int16 = 0
    acknowledge_error_message: String | None = None
    current_leader: LeaderIdAndEpoch = msgspec.field(default_factory=LeaderIdAndEpoch)
    # Only the version that 4.0 previewed could say null: empty on the wire from version 1 on.
    records: Annotated[Records | None, F(nullable=NEVER)] = None
    acquired_records: list[AcquiredRecords] = []


class ShareFetchableTopicResponse(Message):
    topic_id: Uuid = bytes(16)
    partitions: list[PartitionData] = []


class ShareFetchResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    acquisition_lock_timeout_ms: Int32 = 0
    responses: list[ShareFetchableTopicResponse] = []
    node_endpoints: list[NodeEndpoint] = []
