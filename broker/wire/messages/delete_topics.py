"""DeleteTopics: API key 20, versions 1 to 6."""

from __future__ import annotations

from typing import Annotated

from moldau.broker.wire.schema import NO_UUID, F, Int16, Int32, Message, String, Uuid


class DeleteTopicState(Message):
    name: Annotated[String | None, F(since=6)] = None
    topic_id: Annotated[Uuid, F(since=6)] = NO_UUID


class DeleteTopicsRequest(Message):
    topics: Annotated[list[DeleteTopicState], F(since=6)] = []
    topic_names: Annotated[list[String], F(until=5)] = []
    timeout_ms: Int32 = 0


class DeletableTopicResult(Message):
    name: Annotated[String | None, F(nullable=6)] = ""
    topic_id: Annotated[Uuid, F(since=6)] = NO_UUID
    error_code: Int16 = 0
    error_message: Annotated[String | None, F(since=5)] = None


class DeleteTopicsResponse(Message):
    throttle_time_ms: Int32 = 0
    responses: list[DeletableTopicResult] = []
