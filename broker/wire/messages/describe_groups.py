"""DescribeGroups: API key 15, versions 0 to 6."""

from __future__ import annotations

from typing import Annotated

from moldau.broker.wire.schema import Bool, Bytes, F, Int16, Int32, Message, String


class DescribeGroupsRequest(Message):
    groups: list[String] = []
    include_authorized_operations: Annotated[Bool, F(since=3)] = False


class DescribedGroupMember(Message):
    member_id: String = ""
    group_instance_id: Annotated[String | None, F(since=4)] = None
    client_id: String = ""
    client_host: String = ""
    member_metadata: Bytes = b""
    member_assignment: Bytes = b""


class DescribedGroup(Message):
    error_code: Int16 = 0
    error_message: Annotated[String | None, F(since=6)] = None
    group_id: String = ""
    group_state: String = ""
    protocol_type: String = ""
    protocol_data: String = ""
    members: list[DescribedGroupMember] = []
    authorized_operations: Annotated[Int32, F(since=3)] = -2147483648


class DescribeGroupsResponse(Message):
    throttle_time_ms: Annotated[Int32, F(since=1)] = 0
    groups: list[DescribedGroup] = []
