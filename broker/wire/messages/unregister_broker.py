"""UnregisterBroker: API key 64, version 0."""

from __future__ import annotations

from moldau.broker.wire.schema import Int16, Int32, Message, String


class UnregisterBrokerRequest(Message):
    broker_id: Int32 = 0


class UnregisterBrokerResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
