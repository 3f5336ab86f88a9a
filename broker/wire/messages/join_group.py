"""JoinGroup: API key 11, versions 0 to 9."""

from __future__ import annotations

from typing import Annotated

from moldau.broker.wire.schema import Bool, Bytes, F, Int16, Int32, Message, String


class JoinGroupRequestProtocol(Message):
    name: String = ""
    metadata: Bytes = b""


class JoinGroupRequest(Message):
    group_id: String = ""
    session_timeout_ms: Int32 = 0
    rebalance_timeout_ms: Annotated[Int32, F(since=1)] = -1
    member_id: String = ""
    group_instance_id: Annotated[String | None, F(since=5)] = None
    protocol_type: String = ""
    protocols: list[JoinGroupRequestProtocol] = []
    reason: Annotated[String | None, F(since=8)] = None


class JoinGroupResponseMember(Message):
    member_id: String = ""
    group_instance_id: Annotated[String | None, F(since=5)] = None
    metadata: Bytes = b""


class JoinGroupResponse(Message):
    throttle_time_ms: Annotated[Int32, F(since=2)] = 0
    error_code: Int16 = 0
    generation_id: Int32 = -1
    protocol_type: Annotated[String | None, F(since=7)] = None
    protocol_name: Annotated[String | None, F(nullable=7)] = ""
    leader: String = ""
    skip_assignment: Annotated[Bool, F(since=9)] = False
    member_id: String = ""
    members: list[JoinGroupResponseMember] = []
