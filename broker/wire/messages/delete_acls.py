"""DeleteAcls: API key 31, versions 1 to 3."""

from __future__ import annotations

from moldau.broker.wire.schema import Int8, Int16, Int32, Message, String


class DeleteAclsFilter(Message):
    resource_type_filter: Int8 = 0
    resource_name_filter: String | None = ""
    pattern_type_filter: Int8 = 3
    principal_filter: String | None = ""
    host_filter: String | None = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class DeleteAclsRequest(Message):
    filters: list[DeleteAclsFilter] = []


class DeleteAclsMatchingAcl(Message):
    error_code: Int16 = 0
    error_message: String | None = ""
    resource_type: Int8 = 0
    resource_name: String = ""
    pattern_type: Int8 = 3
    principal: String = ""
    host: String = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class DeleteAclsFilterResult(Message):
    error_code: Int16 = 0
    error_message: String | None = ""
    matching_acls: list[DeleteAclsMatchingAcl] = []


class DeleteAclsResponse(Message):
    throttle_time_ms: Int32 = 0
    filter_results: list[DeleteAclsFilterResult] = []
