"""PushTelemetry: API key 72, version 0."""

from __future__ import annotations

from moldau.broker.wire.schema import NO_UUID, Bool, Bytes, Int8, Int16, Int32, Message, Uuid


class PushTelemetryRequest(Message):
    client_instance_id: Uuid = NO_UUID
    subscription_id: Int32 = 0
    terminating: Bool = False
    compression_type: Int8 = 0
    metrics: Bytes = b""


class PushTelemetryResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
