"""DescribeAcls (key 29, KIP-140; KIP-290: patterns from v1): the ACLs that match a filter.

Without an authorizer the request is refused, although user interfaces send it all the same.
"""

from __future__ import annotations

from itertools import groupby

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode, KafkaError
from moldau.broker.handlers.details.acl_fields import NO_AUTHORIZER, filter_of
from moldau.broker.handlers.details.authorization import (
    CLUSTER_DENIED,
    CLUSTER_DENIED_TEXT,
    is_cluster_denied,
)
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.wire.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)


async def handle(broker: Broker, request: DescribeAclsRequest, call: Call) -> DescribeAclsResponse:
    if broker.acls is None:
        return _refused(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
    if is_cluster_denied(broker, call, Operation.DESCRIBE):
        return _refused(CLUSTER_DENIED, CLUSTER_DENIED_TEXT)
    wanted = filter_of(request)
    try:
        wanted.check()
    except KafkaError as refusal:
        return _refused(refusal.code, refusal.message)
    found = sorted(acl for acl in broker.acls.all() if wanted.matches(acl))
    by_resource = groupby(found, lambda acl: (acl.resource, acl.name, acl.pattern))
    return DescribeAclsResponse(
        error_message=None,
        resources=[
            DescribeAclsResource(
                resource,
                name,
                pattern,
                [
                    AclDescription(acl.principal, acl.host, acl.operation, acl.permission)
                    for acl in acls
                ],
            )
            for (resource, name, pattern), acls in by_resource
        ],
    )


def _refused(code: ErrorCode, text: str | None) -> DescribeAclsResponse:
    return DescribeAclsResponse(error_code=code, error_message=text)
