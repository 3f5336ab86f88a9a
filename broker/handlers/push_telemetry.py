"""PushTelemetry (key 72, KIP-714): a client's own metrics, as OTLP.

Served where `moldau.telemetry.enable` is on. Needs no ACL, as in Kafka.
"""

from __future__ import annotations

import time

from moldau.broker.broker import Broker
from moldau.broker.errors import KafkaError, code_for
from moldau.broker.handlers.get_telemetry_subscriptions import asker
from moldau.broker.server.call import Call
from moldau.broker.wire.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse


async def handle(
    broker: Broker, request: PushTelemetryRequest, call: Call
) -> PushTelemetryResponse:
    telemetry = broker.telemetry
    assert telemetry is not None  # the dispatcher refuses it otherwise
    try:
        instance = telemetry.instances.check(
            request.client_instance_id,
            asker(call),
            telemetry.now_ms(),
            subscription_id=request.subscription_id,
            compression_type=request.compression_type,
            size=len(request.metrics),
            is_terminating=request.terminating,
        )
        if request.metrics:
            metrics = await telemetry.read(request.compression_type, bytes(request.metrics))
            telemetry.instances.push(instance, metrics, int(time.time() * 1000))
    except KafkaError as refusal:
        return PushTelemetryResponse(error_code=code_for(refusal))
    return PushTelemetryResponse()
