"""Heartbeat: API key 12, versions 0 to 4."""

from __future__ import annotations

from typing import Annotated

from moldau.broker.wire.schema import F, Int16, Int32, Message, String


class HeartbeatRequest(Message):
    group_id: String = ""
    generation_id: Int32 = 0
    member_id: String = ""
    group_instance_id: Annotated[String | None, F(since=3)] = None


class HeartbeatResponse(Message):
    throttle_time_ms: Annotated[Int32, F(since=1)] = 0
    error_code: Int16 = 0
