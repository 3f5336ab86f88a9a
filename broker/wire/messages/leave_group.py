"""LeaveGroup: API key 13, versions 0 to 5."""

from __future__ import annotations

from typing import Annotated

from moldau.broker.wire.schema import F, Int16, Int32, Message, String


class MemberIdentity(Message):
    member_id: Annotated[String, F(since=3)] = ""
    group_instance_id: Annotated[String | None, F(since=3)] = None
    reason: Annotated[String | None, F(since=5)] = None


class LeaveGroupRequest(Message):
    group_id: String = ""
    member_id: Annotated[String, F(until=2)] = ""
    members: Annotated[list[MemberIdentity], F(since=3)] = []


class MemberResponse(Message):
    member_id: Annotated[String, F(since=3)] = ""
    group_instance_id: Annotated[String | None, F(since=3)] = ""
    error_code: Annotated[Int16, F(since=3)] = 0


class LeaveGroupResponse(Message):
    throttle_time_ms: Annotated[Int32, F(since=1)] = 0
    error_code: Int16 = 0
    members: Annotated[list[MemberResponse], F(since=3)] = []
