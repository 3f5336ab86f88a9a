"""AlterClientQuotas: API key 49, versions 0 to 1."""

from __future__ import annotations

from moldau.broker.wire.schema import Bool, Float64, Int16, Int32, Message, String


class EntityData(Message):
    entity_type: String = ""
    entity_name: String | None = ""


class OpData(Message):
    key: String = ""
    value: Float64 = 0.0
    remove: Bool = False


class EntryRequest(Message):
    entity: list[EntityData] = []
    ops: list[OpData] = []


class AlterClientQuotasRequest(Message):
    entries: list[EntryRequest] = []
    validate_only: Bool = False


class EntryResponse(Message):
    error_code: Int16 = 0
    error_message: String | None = ""
    entity: list[EntityData] = []


class AlterClientQuotasResponse(Message):
    throttle_time_ms: Int32 = 0
    entries: list[EntryResponse] = []
