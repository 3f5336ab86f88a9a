"""DescribeConfigs: API key 32, versions 1 to 4."""

from __future__ import annotations

from typing import Annotated

from moldau.broker.wire.schema import Bool, F, Int8, Int16, Int32, Message, String


class DescribeConfigsResource(Message):
    resource_type: Int8 = 0
    resource_name: String = ""
    configuration_keys: list[String] | None = []


class DescribeConfigsRequest(Message):
    resources: list[DescribeConfigsResource] = []
    include_synonyms: Bool = False
    include_documentation: Annotated[Bool, F(since=3)] = False


class DescribeConfigsSynonym(Message):
    name: String = ""
    value: String | None = ""
    source: Int8 = 0


class DescribeConfigsResourceResult(Message):
    name: String = ""
    value: String | None = ""
    read_only: Bool = False
    config_source: Int8 = -1
    is_sensitive: Bool = False
    synonyms: list[DescribeConfigsSynonym] = []
    config_type: Annotated[Int8, F(since=3)] = 0
    documentation: Annotated[String | None, F(since=3)] = ""


class DescribeConfigsResult(Message):
    error_code: Int16 = 0
    error_message: String | None = ""
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[DescribeConfigsResourceResult] = []


class DescribeConfigsResponse(Message):
    throttle_time_ms: Int32 = 0
    results: list[DescribeConfigsResult] = []
