"""GetTelemetrySubscriptions (key 71, KIP-714): the metrics that a client is to push.

Served where `moldau.telemetry.enable` is on. Needs no ACL, as in Kafka. Unlike Kafka, counters are
requested as totals: a lost push loses nothing, and Prometheus wants totals.
"""

from __future__ import annotations

from moldau.broker.broker import Broker
from moldau.broker.errors import KafkaError, code_for
from moldau.broker.server.call import Call
from moldau.broker.telemetry.instances import COMPRESSION_TYPES, Asker
from moldau.broker.telemetry.subscriptions import Client
from moldau.broker.wire.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)

MAX_CLIENT_ID = 256  # characters


async def handle(
    broker: Broker, request: GetTelemetrySubscriptionsRequest, call: Call
) -> GetTelemetrySubscriptionsResponse:
    telemetry = broker.telemetry
    assert telemetry is not None  # the dispatcher refuses it otherwise
    try:
        found = telemetry.instances.ask(request.client_instance_id, asker(call), telemetry.now_ms())
    except KafkaError as refusal:
        return GetTelemetrySubscriptionsResponse(error_code=code_for(refusal))
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=found.instance_id,
        subscription_id=found.subscription_id,
        accepted_compression_types=list(COMPRESSION_TYPES),
        push_interval_ms=found.wanted.interval_ms,
        telemetry_max_bytes=telemetry.instances.max_bytes,
        delta_temporality=False,
        requested_metrics=list(found.wanted.metrics),
    )


def asker(call: Call) -> Asker:
    """The client as telemetry knows it."""
    identity = call.identity
    name, version = identity.software
    client_id = (call.header.client_id or "")[:MAX_CLIENT_ID]
    client = Client(client_id, identity.host, identity.port, name, version)
    return Asker(identity.principal, id(call.connection), client)
