"""CreateAcls (key 30, KIP-140): there is no authorizer, and each ACL is refused."""

from __future__ import annotations

from broker.errors import ErrorCode
from broker.handlers.context import Broker
from broker.handlers.describe_acls import NO_AUTHORIZER
from broker.server.connection import Call
from broker.wire.messages.create_acls import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)


async def handle(broker: Broker, request: CreateAclsRequest, call: Call) -> CreateAclsResponse:
    refused = AclCreationResult(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
    return CreateAclsResponse(results=[refused] * len(request.creations))
