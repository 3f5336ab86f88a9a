"""FindCoordinator: API key 10, versions 0 to 6."""

from __future__ import annotations

from typing import Annotated

from moldau.broker.wire.schema import F, Int8, Int16, Int32, Message, String


class FindCoordinatorRequest(Message):
    key: Annotated[String, F(until=3)] = ""
    key_type: Annotated[Int8, F(since=1)] = 0
    coordinator_keys: Annotated[list[String], F(since=4)] = []


class Coordinator(Message):
    key: Annotated[String, F(since=4)] = ""
    node_id: Annotated[Int32, F(since=4)] = 0
    host: Annotated[String, F(since=4)] = ""
    port: Annotated[Int32, F(since=4)] = 0
    error_code: Annotated[Int16, F(since=4)] = 0
    error_message: Annotated[String | None, F(since=4)] = ""


class FindCoordinatorResponse(Message):
    throttle_time_ms: Annotated[Int32, F(since=1)] = 0
    error_code: Annotated[Int16, F(until=3)] = 0
    error_message: Annotated[String | None, F(since=1, until=3)] = ""
    node_id: Annotated[Int32, F(until=3)] = 0
    host: Annotated[String, F(until=3)] = ""
    port: Annotated[Int32, F(until=3)] = 0
    coordinators: Annotated[list[Coordinator], F(since=4)] = []
