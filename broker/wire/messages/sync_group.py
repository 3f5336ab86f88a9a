"""SyncGroup: API key 14, versions 0 to 5."""

from __future__ import annotations

from typing import Annotated

from moldau.broker.wire.schema import Bytes, F, Int16, Int32, Message, String


class SyncGroupRequestAssignment(Message):
    member_id: String = ""
    assignment: Bytes = b""


class SyncGroupRequest(Message):
    group_id: String = ""
    generation_id: Int32 = 0
    member_id: String = ""
    group_instance_id: Annotated[String | None, F(since=3)] = None
    protocol_type: Annotated[String | None, F(since=5)] = None
    protocol_name: Annotated[String | None, F(since=5)] = None
    assignments: list[SyncGroupRequestAssignment] = []


class SyncGroupResponse(Message):
    throttle_time_ms: Annotated[Int32, F(since=1)] = 0
    error_code: Int16 = 0
    protocol_type: Annotated[String | None, F(since=5)] = None
    protocol_name: Annotated[String | None, F(since=5)] = None
    assignment: Bytes = b""
