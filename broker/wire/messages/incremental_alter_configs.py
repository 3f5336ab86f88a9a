"""IncrementalAlterConfigs: API key 44, versions 0 to 1."""

from __future__ import annotations

from moldau.broker.wire.messages.alter_configs import AlterConfigsResourceResponse
from moldau.broker.wire.schema import Bool, Int8, Int32, Message, String


class AlterableConfig(Message):
    name: String = ""
    config_operation: Int8 = 0
    value: String | None = ""


class AlterConfigsResource(Message):
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[AlterableConfig] = []


class IncrementalAlterConfigsRequest(Message):
    resources: list[AlterConfigsResource] = []
    validate_only: Bool = False


class IncrementalAlterConfigsResponse(Message):
    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse] = []
