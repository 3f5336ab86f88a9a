"""ListConfigResources: API key 74, versions 0 to 1."""

from __future__ import annotations

from typing import Annotated

from moldau.broker.wire.schema import F, Int8, Int16, Int32, Message, String


class ListConfigResourcesRequest(Message):
    resource_types: Annotated[list[Int8], F(since=1)] = []


class ConfigResource(Message):
    resource_name: String = ""
    resource_type: Annotated[Int8, F(since=1)] = 16


class ListConfigResourcesResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    config_resources: list[ConfigResource] = []
