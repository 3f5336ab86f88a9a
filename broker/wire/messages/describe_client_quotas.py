"""DescribeClientQuotas: API key 48, versions 0 to 1."""

from __future__ import annotations

from moldau.broker.wire.schema import Bool, Float64, Int8, Int16, Int32, Message, String


class ComponentData(Message):
    entity_type: String = ""
    match_type: Int8 = 0
    match: String | None = ""


class DescribeClientQuotasRequest(Message):
    components: list[ComponentData] = []
    strict: Bool = False


class EntityData(Message):
    entity_type: String = ""
    entity_name: String | None = ""


class ValueData(Message):
    key: String = ""
    value: Float64 = 0.0


class EntryData(Message):
    entity: list[EntityData] = []
    values: list[ValueData] = []


class DescribeClientQuotasResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
    entries: list[EntryData] | None = []
