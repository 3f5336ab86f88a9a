"""DeleteAcls (key 31, KIP-140): there is no authorizer, and each filter is refused as in Kafka."""

from __future__ import annotations

from broker.errors import ErrorCode
from broker.handlers.context import Broker
from broker.handlers.describe_acls import NO_AUTHORIZER
from broker.server.connection import Call
from broker.wire.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
)


async def handle(broker: Broker, request: DeleteAclsRequest, call: Call) -> DeleteAclsResponse:
    refused = DeleteAclsFilterResult(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
    return DeleteAclsResponse(filter_results=[refused] * len(request.filters))
