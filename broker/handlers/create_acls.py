"""CreateAcls (key 30, KIP-140): ACLs are checked one by one; one that exists is a success.

The ACLs are in force on every worker before the reply.
"""

from __future__ import annotations

from moldau.broker.broker import Broker
from moldau.broker.errors import KafkaError, StoreFault, code_for, message_for
from moldau.broker.handlers.details.acl_fields import acl_of, acls_for
from moldau.broker.security.acl import Acl
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.wire.messages.create_acls import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)


async def handle(broker: Broker, request: CreateAclsRequest, call: Call) -> CreateAclsResponse:
    try:
        acls = acls_for(broker, call, Operation.ALTER)
    except KafkaError as refusal:
        refused = AclCreationResult(refusal.code, refusal.message)
        return CreateAclsResponse(results=[refused] * len(request.creations))
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
            await acls.add(accepted, call.identity.principal)
        except StoreFault as fault:
            for result in results:
                if not result.error_code:
                    result.error_code, result.error_message = code_for(fault), message_for(fault)
        else:
            await broker.changes_applied()
            for acl in accepted:
                broker.audit.changed(call.identity, "acl", "created", acl.text)
    return CreateAclsResponse(results=results)
