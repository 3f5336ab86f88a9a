"""DescribeAcls (key 29): there is no authorizer; user interfaces ask for it all the same."""

from __future__ import annotations

from broker.errors import ErrorCode
from broker.handlers.context import Broker
from broker.server.connection import Call
from broker.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

NO_AUTHORIZER = "No Authorizer is configured on the broker"


async def handle(broker: Broker, request: DescribeAclsRequest, call: Call) -> DescribeAclsResponse:
    return DescribeAclsResponse(
        error_code=ErrorCode.SECURITY_DISABLED,
        error_message=NO_AUTHORIZER,
    )
