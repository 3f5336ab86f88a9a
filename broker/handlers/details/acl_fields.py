"""ACLs and filters between the messages of APIs 29 to 31 and `security`."""

from __future__ import annotations

from typing import Protocol

from moldau.broker.security.acl import Acl, AclFilter, from_wire
from moldau.broker.security.resources import Operation, PatternType, Permission, ResourceType
from moldau.broker.wire.messages.create_acls import AclCreation

NO_AUTHORIZER = "No Authorizer is configured on the broker"


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
