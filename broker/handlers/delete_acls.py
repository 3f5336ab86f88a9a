"""DeleteAcls (key 31, KIP-140): the ACLs that each filter matches. They are gone on every
worker before the reply."""

from __future__ import annotations

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode, KafkaError, StoreFault, code_for, message_for
from moldau.broker.handlers.details.acl_fields import acls_for, filter_of
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
    try:
        acls = acls_for(broker, call, Operation.ALTER)
        # Read from the store: another worker may just have created one.
        await acls.load()
    except (KafkaError, StoreFault) as fault:
        return _all_refused(request, code_for(fault), message_for(fault))
    known = sorted(acls.all())
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
            await acls.remove(gone)
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
