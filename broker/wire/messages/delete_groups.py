"""DeleteGroups: API key 42, versions 0 to 2."""

from __future__ import annotations

from moldau.broker.wire.schema import Int16, Int32, Message, String


class DeleteGroupsRequest(Message):
    groups_names: list[String] = []


class DeletableGroupResult(Message):
    group_id: String = ""
    error_code: Int16 = 0


class DeleteGroupsResponse(Message):
    throttle_time_ms: Int32 = 0
    results: list[DeletableGroupResult] = []
