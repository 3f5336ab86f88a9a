"""CreateAcls (key 30, KIP-140): ACLs are checked one by one; one that exists is a success.

The ACLs are in force on every worker before the reply.
"""

from __future__ import annotations

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode, KafkaError, StoreFault, code_for, message_for
from moldau.broker.handlers.details.acl_fields import NO_AUTHORIZER, acl_of
from moldau.broker.handlers.details.authorization import (
    CLUSTER_DENIED,
    CLUSTER_DENIED_TEXT,
    is_cluster_denied,
)
from moldau.broker.security.acl import Acl
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.wire.messages.create_acls import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)


async def handle(broker: Broker, request: CreateAclsRequest, call: Call) -> CreateAclsResponse:
    if broker.acls is None:
        return _all_refused(request, ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
    if is_cluster_denied(broker, call, Operation.ALTER):
        return _all_refused(request, CLUSTER_DENIED, CLUSTER_DENIED_TEXT)
    accepted: dict[Acl, None] = {}
    results = []
    for item in request.creations:
        acl = acl_of(item)
        try:
            acl.check()
        except KafkaError as refusal:
            results.append(AclCreationResult(refusal.code, refusal.message))
        else:
            results.append(AclCreationResult(error_message=None))
            accepted[acl] = None
    if accepted:
        try:
            await broker.acls.add(accepted, call.identity.principal)
        except StoreFault as fault:
            for result in results:
                if not result.error_code:
                    result.error_code, result.error_message = code_for(fault), message_for(fault)
        else:
            await broker.changes_applied()
            for acl in accepted:
                broker.audit.changed(call.identity, "acl", "created", acl.text)
    return CreateAclsResponse(results=results)


def _all_refused(request: CreateAclsRequest, code: ErrorCode, text: str) -> CreateAclsResponse:
    return CreateAclsResponse(results=[AclCreationResult(code, text)] * len(request.creations))
