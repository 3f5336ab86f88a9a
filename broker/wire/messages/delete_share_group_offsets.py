"""DeleteShareGroupOffsets: API key 92, version 0."""

from __future__ import annotations

from moldau.broker.wire.schema import Int16, Int32, Message, String, Uuid


class DeleteShareGroupOffsetsRequestTopic(Message):
    topic_name: String = ""


class DeleteShareGroupOffsetsRequest(Message):
    group_id: String = ""
    topics: list[DeleteShareGroupOffsetsRequestTopic] = []


class DeleteShareGroupOffsetsResponseTopic(Message):
    topic_name: String = ""
    topic_id: Uuid = bytes(16)
    error_code: Int16 = 0
    error_message: String | None = None


class DeleteShareGroupOffsetsResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    responses: list[DeleteShareGroupOffsetsResponseTopic] = []
