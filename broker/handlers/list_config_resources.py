"""ListConfigResources (key 74, KIP-714; KIP-1142: v1 lists every kind of resource).

Version 0 asks for client metrics only: there are none unless telemetry is on.
"""

from __future__ import annotations

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode
from moldau.broker.handlers.details.authorization import CLUSTER_DENIED, is_cluster_denied
from moldau.broker.handlers.details.configs import (
    BROKER,
    BROKER_LOGGER,
    CLIENT_METRICS,
    GROUP,
    TOPIC,
)
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.wire.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

KINDS = (TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP)


async def handle(
    broker: Broker, request: ListConfigResourcesRequest, call: Call
) -> ListConfigResourcesResponse:
    if is_cluster_denied(broker, call, Operation.DESCRIBE_CONFIGS):
        return ListConfigResourcesResponse(error_code=CLUSTER_DENIED)
    wanted = request.resource_types or list(KINDS)
    if call.header.api_version == 0:
        wanted = [CLIENT_METRICS]
    if not set(wanted).issubset(KINDS):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    nodes = [str(node) for node in broker.nodes]
    names = {
        TOPIC: [topic.name for topic in broker.topics.all()],
        BROKER: nodes,
        BROKER_LOGGER: nodes,
        CLIENT_METRICS: sorted(broker.telemetry.by_name) if broker.telemetry else [],
        GROUP: sorted(broker.group_settings.by_id),
    }
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(name, kind) for kind in wanted for name in names.get(kind, ())
        ]
    )
