"""GetTelemetrySubscriptions: API key 71, version 0."""

from __future__ import annotations

from moldau.broker.wire.schema import NO_UUID, Bool, Int8, Int16, Int32, Message, String, Uuid


class GetTelemetrySubscriptionsRequest(Message):
    client_instance_id: Uuid = NO_UUID


class GetTelemetrySubscriptionsResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    client_instance_id: Uuid = NO_UUID
    subscription_id: Int32 = 0
    accepted_compression_types: list[Int8] = []
    push_interval_ms: Int32 = 0
    telemetry_max_bytes: Int32 = 0
    delta_temporality: Bool = False
    requested_metrics: list[String] = []
