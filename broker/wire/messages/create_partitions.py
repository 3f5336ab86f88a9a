"""CreatePartitions: API key 37, versions 0 to 3."""

from __future__ import annotations

from moldau.broker.wire.schema import Bool, Int16, Int32, Message, String


class CreatePartitionsAssignment(Message):
    broker_ids: list[Int32] = []


class CreatePartitionsTopic(Message):
    name: String = ""
    count: Int32 = 0
    assignments: list[CreatePartitionsAssignment] | None = []


class CreatePartitionsRequest(Message):
    topics: list[CreatePartitionsTopic] = []
    timeout_ms: Int32 = 0
    validate_only: Bool = False


class CreatePartitionsTopicResult(Message):
    name: String = ""
    error_code: Int16 = 0
    error_message: String | None = None


class CreatePartitionsResponse(Message):
    throttle_time_ms: Int32 = 0
    results: list[CreatePartitionsTopicResult] = []
