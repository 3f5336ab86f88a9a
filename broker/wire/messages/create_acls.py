"""CreateAcls: API key 30, versions 1 to 3."""

from __future__ import annotations

from moldau.broker.wire.schema import Int8, Int16, Int32, Message, String


class AclCreation(Message):
    resource_type: Int8 = 0
    resource_name: String = ""
    resource_pattern_type: Int8 = 3
    principal: String = ""
    host: String = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class CreateAclsRequest(Message):
    creations: list[AclCreation] = []


class AclCreationResult(Message):
    error_code: Int16 = 0
    error_message: String | None = ""


class CreateAclsResponse(Message):
    throttle_time_ms: Int32 = 0
    results: list[AclCreationResult] = []
