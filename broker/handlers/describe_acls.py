"""DescribeAcls (key 29, KIP-140; KIP-290: patterns from v1): the ACLs that match a filter.

Without an authorizer the request is refused, although user interfaces send it all the same.
"""

from __future__ import annotations

from itertools import groupby

from moldau.broker.broker import Broker
from moldau.broker.errors import KafkaError
from moldau.broker.handlers.details.acl_fields import acls_for, filter_of
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.wire.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)


async def handle(broker: Broker, request: DescribeAclsRequest, call: Call) -> DescribeAclsResponse:
    wanted = filter_of(request)
    try:
        acls = acls_for(broker, call, Operation.DESCRIBE)
        wanted.check()
    except KafkaError as refusal:
        return DescribeAclsResponse(error_code=refusal.code, error_message=refusal.message)
    found = sorted(acl for acl in acls.all() if wanted.matches(acl))
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
                    for acl in same
                ],
            )
            for (resource, name, pattern), same in by_resource
        ],
    )
