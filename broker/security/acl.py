"""One ACL: who may or may not do what, on which resources, from where; and filters that find ACLs.

An ACL has no number: all its fields together are its identity. `text` is that identity as it is
stored, one line that can be read in redis-cli:

    ALLOW User:alice READ TOPIC PREFIXED orders- *

Fields that clients choose are percent-encoded, so that none contains a space.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Self, TypeVar
from urllib.parse import quote, unquote

import msgspec

from moldau.broker.errors import ErrorCode, KafkaError
from moldau.broker.security.resources import (
    CLUSTER_NAME,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

WILDCARD = "*"
EVERYONE = "User:*"
_SAFE = "*:/@,=+()[]{}|!$&'?#~<>^"  # beside letters, digits and _.-

# Values that only filters may have, not ACLs.
_NOT_IN_ACL = frozenset({"UNKNOWN", "ANY", "MATCH"})


class Acl(msgspec.Struct, frozen=True, order=True):
    resource: ResourceType
    name: str
    pattern: PatternType
    principal: str
    host: str
    operation: Operation
    permission: Permission

    @property
    def text(self) -> str:
        fields = (
            self.permission.name,
            quote(self.principal, _SAFE),
            self.operation.name,
            self.resource.name,
            self.pattern.name,
            quote(self.name, _SAFE),
            quote(self.host, _SAFE),
        )
        return " ".join(fields)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text of an ACL. Raises ValueError."""
        fields = text.split(" ")
        try:
            permission, principal, operation, resource, pattern, name, host = fields
            return cls(
                ResourceType[resource],
                unquote(name, errors="strict"),
                PatternType[pattern],
                unquote(principal, errors="strict"),
                unquote(host, errors="strict"),
                Operation[operation],
                Permission[permission],
            )
        except (ValueError, KeyError) as fault:
            raise ValueError(f"not an ACL: {text[:200]!r} ({fault})") from None

    def check(self) -> None:
        """Raise KafkaError (INVALID_REQUEST) for an ACL that Kafka would not create."""
        for field in (self.resource, self.pattern, self.operation, self.permission):
            if field.name in _NOT_IN_ACL:
                raise _refused(f"Invalid {type(field).__name__} {field.name}")
        if not self.name:
            raise _refused("Invalid empty resource name")
        if self.resource is ResourceType.CLUSTER and self.name != CLUSTER_NAME:
            raise _refused(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
        kind, colon, name = self.principal.partition(":")
        if not (kind and colon and name):
            raise _refused(
                f"Could not parse principal from `{self.principal}` (no colon is present "
                "separating the principal type from the principal name)"
            )


class AclFilter(msgspec.Struct, frozen=True):
    """The filter of DescribeAcls and DeleteAcls. None and ANY match everything.

    A MATCH pattern finds the ACLs that apply to the resource called `name`: those for that name,
    for a prefix of it, and for all resources.
    """

    resource: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def check(self) -> None:
        """Raises KafkaError."""
        for field in (self.resource, self.pattern, self.operation, self.permission):
            if field.name == "UNKNOWN":
                raise _refused(f"Unknown {type(field).__name__} in the filter")

    def matches(self, acl: Acl) -> bool:
        return (
            self.resource in (ResourceType.ANY, acl.resource)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
            and self._matches_pattern(acl)
        )

    def _matches_pattern(self, acl: Acl) -> bool:
        wanted, name = self.pattern, self.name
        if wanted is PatternType.MATCH:
            if name is None or name == acl.name:
                return True
            if acl.pattern is PatternType.PREFIXED:
                return name.startswith(acl.name)
            return acl.name == WILDCARD
        return wanted in (PatternType.ANY, acl.pattern) and name in (None, acl.name)


F = TypeVar("F", ResourceType, PatternType, Operation, Permission)


def from_wire(kind: type[F], number: int) -> F:
    """Return the field with this number, or UNKNOWN if there is none, as in Kafka."""
    try:
        return kind(number)
    except ValueError:
        return kind(0)


@lru_cache(maxsize=4096)
def canonical_host(host: str) -> str:
    """Return an address in the one form in which hosts are compared. ACLs that Java clients write
    have long IPv6 addresses, and sockets that serve both families show IPv4 addresses mapped into
    IPv6."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address)


def _refused(text: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, text)
