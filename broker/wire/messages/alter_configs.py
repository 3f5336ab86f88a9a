"""AlterConfigs: API key 33, versions 0 to 2."""

from __future__ import annotations

from moldau.broker.wire.schema import Bool, Int8, Int16, Int32, Message, String


class AlterableConfig(Message):
    name: String = ""
    value: String | None = ""


class AlterConfigsResource(Message):
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[AlterableConfig] = []


class AlterConfigsRequest(Message):
    resources: list[AlterConfigsResource] = []
    validate_only: Bool = False


class AlterConfigsResourceResponse(Message):
    error_code: Int16 = 0
    error_message: String | None = ""
    resource_type: Int8 = 0
    resource_name: String = ""


class AlterConfigsResponse(Message):
    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse] = []
