"""ListGroups: API key 16, versions 0 to 5."""

from __future__ import annotations

from typing import Annotated

from moldau.broker.wire.schema import F, Int16, Int32, Message, String


class ListGroupsRequest(Message):
    states_filter: Annotated[list[String], F(since=4)] = []
    types_filter: Annotated[list[String], F(since=5)] = []


class ListedGroup(Message):
    group_id: String = ""
    protocol_type: String = ""
    group_state: Annotated[String, F(since=4)] = ""
    group_type: Annotated[String, F(since=5)] = ""


class ListGroupsResponse(Message):
    throttle_time_ms: Annotated[Int32, F(since=1)] = 0
    error_code: Int16 = 0
    groups: list[ListedGroup] = []
