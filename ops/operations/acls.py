"""The ACLs of a running broker: find, create and remove them, and say them in words."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from moldau.broker.errors import ErrorCode
from moldau.broker.private.table import ACL_ORIGINS
from moldau.broker.security.acl import EVERYONE, WILDCARD, Acl, AclFilter
from moldau.broker.security.resources import Operation, PatternType, Permission, ResourceType
from moldau.broker.wire.messages.create_acls import AclCreation, CreateAclsRequest
from moldau.broker.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from moldau.broker.wire.messages.describe_acls import DescribeAclsRequest
from moldau.ops.client import Cluster, refusal
from moldau.ops.local_broker import LocalWorkers

EVERYTHING = AclFilter()
_NO_AUTHORIZER = (
    "start the broker with --secure, or with authorizer.class.name=standard and super.users "
    "under [broker]"
)


class Resource(NamedTuple):
    kind: ResourceType
    name: str


def find_acls(cluster: Cluster, wanted: Iterable[AclFilter] = (EVERYTHING,)) -> list[Acl]:
    """Sorted, each once. Raises ClientError."""
    found: set[Acl] = set()
    for one in wanted:
        answer = cluster.call(DescribeAclsRequest(*msgspec.structs.astuple(one)))
        _check(answer.error_code, answer.error_message)
        found.update(
            _parsed(resource, acl) for resource in answer.resources for acl in resource.acls
        )
    return sorted(found, key=_order)


def acl_origins(cluster: Cluster) -> dict[str, str]:
    """Who made an ACL and when, by its text; empty unless the broker runs on this machine."""
    origins = LocalWorkers(cluster).ask_any(ACL_ORIGINS, None) or {}
    return {
        text: f"{time.strftime('%Y-%m-%d', time.localtime(one.created_ms / 1000))}, "
        f"by {one.created_by.removeprefix('User:')}"
        for text, one in origins.items()
    }


def create_acls(cluster: Cluster, acls: Sequence[Acl]) -> None:
    """Those that exist stay. Raises ClientError, when some may have been made."""
    creations = [AclCreation(*msgspec.structs.astuple(acl)) for acl in acls]
    for result in cluster.call(CreateAclsRequest(creations)).results:
        _check(result.error_code, result.error_message)


def delete_acls(cluster: Cluster, wanted: Sequence[AclFilter]) -> list[Acl]:
    """Those that were removed. Raises ClientError."""
    requested = [DeleteAclsFilter(*msgspec.structs.astuple(one)) for one in wanted]
    removed: set[Acl] = set()
    for result in cluster.call(DeleteAclsRequest(requested)).filter_results:
        _check(result.error_code, result.error_message)
        for acl in result.matching_acls:
            _check(acl.error_code, acl.error_message)
            removed.add(_parsed(acl, acl))
    return sorted(removed, key=_order)


def _parsed(resource: Any, acl: Any) -> Acl:
    return Acl(
        ResourceType(resource.resource_type),
        resource.resource_name,
        PatternType(resource.pattern_type),
        acl.principal,
        acl.host,
        Operation(acl.operation),
        Permission(acl.permission_type),
    )


def exactly(acl: Acl) -> AclFilter:
    """A filter that matches this ACL and no other."""
    return AclFilter(*msgspec.structs.astuple(acl))


def _order(acl: Acl) -> tuple[Any, ...]:
    """Sort by principal, then by resource."""
    return acl.principal, acl.resource, acl.name, acl.pattern, acl.permission, acl.operation


def _check(code: int, message: str | None) -> None:
    if code:
        remedy = _NO_AUTHORIZER if code == ErrorCode.SECURITY_DISABLED else None
        raise refusal("ACLs", code, message, remedy)


# --- in words ---

_KINDS = {
    ResourceType.TOPIC: "topic",
    ResourceType.GROUP: "group",
    ResourceType.TRANSACTIONAL_ID: "transactional id",
    ResourceType.DELEGATION_TOKEN: "delegation token",
    ResourceType.USER: "user",
}


def resource_text(kind: ResourceType, name: str, pattern: PatternType) -> str:
    if kind is ResourceType.CLUSTER:
        return "the cluster"
    what = _KINDS.get(kind, kind.name.lower())
    if name == WILDCARD and pattern is PatternType.LITERAL:
        return f"every {what}"
    return f"{what}s {name}*" if pattern is PatternType.PREFIXED else f"{what} {name}"


def acl_text(acl: Acl) -> str:
    whom = "everyone" if acl.principal == EVERYONE else acl.principal
    where = "" if acl.host == WILDCARD else f" from {acl.host}"
    resource = resource_text(acl.resource, acl.name, acl.pattern)
    return f"{acl.permission.name} {acl.operation.name} on {resource} for {whom}{where}"
