"""DeleteAcls (key 31, KIP-140): the ACLs that each filter matches. They are gone on every
worker before the reply."""

from __future__ import annotations

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode, KafkaError, StoreFault, code_for, message_for
from moldau.broker.handlers.details.acl_fields import NO_AUTHORIZER, filter_of
from moldau.broker.handlers.details.authorization import (
    CLUSTER_DENIED,
    CLUSTER_DENIED_TEXT,
    is_cluster_denied,
)
from moldau.broker.security.acl import Acl
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.wire.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)


async def handle(broker: Broker, request: DeleteAclsRequest, call: Call) -> DeleteAclsResponse:
    if broker.acls is None:
        return _all_refused(request, ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
    if is_cluster_denied(broker, call, Operation.ALTER):
        return _all_refused(request, CLUSTER_DENIED, CLUSTER_DENIED_TEXT)
    # Read from the store: another worker may just have created one.
    try:
        await broker.acls.load()
    except StoreFault as fault:
        return _all_refused(request, code_for(fault), message_for(fault))
    known = sorted(broker.acls.all())
    gone: dict[Acl, None] = {}
    results = []
    for item in request.filters:
        wanted = filter_of(item)
        try:
            wanted.check()
        except KafkaError as refusal:
            results.append(DeleteAclsFilterResult(refusal.code, refusal.message))
            continue
        found = [acl for acl in known if wanted.matches(acl)]
        gone |= dict.fromkeys(found)
        results.append(DeleteAclsFilterResult(0, None, [_answer(acl) for acl in found]))
    if gone:
        try:
            await broker.acls.remove(gone)
        except StoreFault as fault:
            return _all_refused(request, code_for(fault), message_for(fault))
        await broker.changes_applied()
        for acl in gone:
            broker.audit.changed(call.identity, "acl", "deleted", acl.text)
    return DeleteAclsResponse(filter_results=results)


def _answer(acl: Acl) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        0,
        None,
        acl.resource,
        acl.name,
        acl.pattern,
        acl.principal,
        acl.host,
        acl.operation,
        acl.permission,
    )


def _all_refused(
    request: DeleteAclsRequest, code: ErrorCode, text: str | None
) -> DeleteAclsResponse:
    refused = DeleteAclsFilterResult(code, text)
    return DeleteAclsResponse(filter_results=[refused] * len(request.filters))
