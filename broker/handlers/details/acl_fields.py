"""The ACLs that a client may see or change, and their form in the messages of APIs 29 to 31."""

from __future__ import annotations

from typing import Protocol

from moldau.broker.access.acls import Acls
from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode, KafkaError
from moldau.broker.handlers.details.authorization import CLUSTER, denial, is_cluster_denied
from moldau.broker.security.acl import Acl, AclFilter, from_wire
from moldau.broker.security.resources import Operation, PatternType, Permission, ResourceType
from moldau.broker.server.call import Call
from moldau.broker.wire.messages.create_acls import AclCreation

NO_AUTHORIZER = "No Authorizer is configured on the broker"


def acls_for(broker: Broker, call: Call, operation: Operation) -> Acls:
    """Return the ACLs, for a client that may do this with the cluster. Raises KafkaError."""
    if broker.acls is None:
        raise KafkaError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
    if is_cluster_denied(broker, call, operation):
        raise denial(CLUSTER)
    return broker.acls


class FilterFields(Protocol):
    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int


def acl_of(item: AclCreation) -> Acl:
    return Acl(
        from_wire(ResourceType, item.resource_type),
        item.resource_name,
        from_wire(PatternType, item.resource_pattern_type),
        item.principal,
        item.host,
        from_wire(Operation, item.operation),
        from_wire(Permission, item.permission_type),
    )


def filter_of(item: FilterFields) -> AclFilter:
    return AclFilter(
        from_wire(ResourceType, item.resource_type_filter),
        item.resource_name_filter,
        from_wire(PatternType, item.pattern_type_filter),
        item.principal_filter,
        item.host_filter,
        from_wire(Operation, item.operation),
        from_wire(Permission, item.permission_type),
    )
