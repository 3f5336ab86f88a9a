"""DescribeClientQuotas (key 48, KIP-546): the quotas that match a filter."""

from __future__ import annotations

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode, KafkaError
from moldau.broker.handlers.details.authorization import (
    CLUSTER_DENIED,
    CLUSTER_DENIED_TEXT,
    is_cluster_denied,
)
from moldau.broker.security.quota_requests import Filter, matching
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.wire.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)


async def handle(
    broker: Broker, request: DescribeClientQuotasRequest, call: Call
) -> DescribeClientQuotasResponse:
    if is_cluster_denied(broker, call, Operation.DESCRIBE_CONFIGS):
        return _refused(CLUSTER_DENIED, CLUSTER_DENIED_TEXT)
    components = [(item.entity_type, item.match_type, item.match) for item in request.components]
    try:
        wanted = Filter(components, strict=request.strict)
    except KafkaError as refusal:
        return _refused(refusal.code, refusal.message)
    return DescribeClientQuotasResponse(
        error_message=None,
        entries=[
            EntryData(
                [EntityData(kind, name or None) for kind, name in entity.parts()],
                [ValueData(key, value) for key, value in values.items()],
            )
            for entity, values in matching(broker.quotas.table.quotas, wanted)
        ],
    )


def _refused(code: ErrorCode, text: str | None) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(error_code=code, error_message=text, entries=None)
