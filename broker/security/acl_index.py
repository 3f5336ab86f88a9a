"""Finds the ACLs that apply, by principal, then by type and name of the resource. Pure.

A change of the ACLs builds a new index; `add` is only for building it. A look-up costs one
dictionary access for the name, one for `*`, and one for each length that prefixes have, however
many ACLs there are.

The rules are those of Kafka's StandardAuthorizer. A DENY that applies wins over every ALLOW. An
ALLOW of READ, WRITE, DELETE or ALTER implies DESCRIBE, one of ALTER_CONFIGS implies
DESCRIBE_CONFIGS; a DENY implies nothing. ALL stands for every operation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from moldau.broker.security.acl import EVERYONE, WILDCARD, Acl, canonical_host
from moldau.broker.security.resources import Operation, PatternType, Permission, ResourceType

_IMPLIED_BY = {
    Operation.DESCRIBE: frozenset(
        {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    ),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}
_NONE: frozenset[Operation] = frozenset()


class Names:
    """ACLs by the names of their resources, which all have one type."""

    __slots__ = ("_lengths", "_literal", "_prefixed")

    def __init__(self) -> None:
        self._literal: dict[str, list[Acl]] = {}
        self._prefixed: dict[str, list[Acl]] = {}
        self._lengths: list[int] = []  # of the prefixes

    def add(self, acl: Acl) -> None:
        is_prefix = acl.pattern is PatternType.PREFIXED
        (self._prefixed if is_prefix else self._literal).setdefault(acl.name, []).append(acl)
        if is_prefix and len(acl.name) not in self._lengths:
            self._lengths.append(len(acl.name))
            self._lengths.sort()

    def applying_to(self, name: str) -> Iterator[Acl]:
        yield from self._literal.get(name, ())
        if name != WILDCARD:
            yield from self._literal.get(WILDCARD, ())
        for length in self._lengths:
            if length > len(name):
                break
            yield from self._prefixed.get(name[:length], ())

    def all(self) -> Iterator[Acl]:
        for found in (self._literal, self._prefixed):
            for acls in found.values():
                yield from acls


class AclIndex:
    def __init__(self, acls: Iterable[Acl] = ()) -> None:
        self.acls: set[Acl] = set()
        self._by_principal: dict[tuple[str, ResourceType], Names] = {}
        self._by_resource: dict[ResourceType, Names] = {}
        self._hosts: dict[str, str] = {}  # canonical form by host
        for acl in acls:
            self.add(acl)

    def add(self, acl: Acl) -> None:
        if acl in self.acls:
            return
        self.acls.add(acl)
        key = (acl.principal, acl.resource)
        self._by_principal.setdefault(key, Names()).add(acl)
        self._by_resource.setdefault(acl.resource, Names()).add(acl)
        if acl.host not in self._hosts:
            self._hosts[acl.host] = canonical_host(acl.host)

    def applying(
        self, principal: str, host: str, resource: ResourceType, name: str
    ) -> Iterator[Acl]:
        """Return every ACL that affects this client on that resource."""
        for whom in {principal, EVERYONE}:
            names = self._by_principal.get((whom, resource))
            if names is not None:
                for acl in names.applying_to(name):
                    if self._hosts[acl.host] in (WILDCARD, host):
                        yield acl

    def decide(
        self, principal: str, host: str, operation: Operation, resource: ResourceType, name: str
    ) -> bool | None:
        """Return the decision, or None if no ACL applies."""
        allowed = None
        for acl in self.applying(principal, host, resource, name):
            if acl.permission is Permission.DENY:
                if acl.operation in (operation, Operation.ALL):
                    return False
            elif allows(acl.operation, operation):
                allowed = True
        return allowed

    def names(self, resource: ResourceType, name: str) -> bool:
        """True if any ACL, of any principal, applies to the resource."""
        names = self._by_resource.get(resource)
        return names is not None and any(True for _ in names.applying_to(name))

    def decide_on_any(
        self, principal: str, host: str, operation: Operation, resource: ResourceType
    ) -> bool:
        """Decide whether the ACLs allow it on any resource of this type (KIP-679).

        The result is Kafka's: an ALLOW counts unless a DENY covers all of its names.
        """
        allowed: list[Acl] = []
        denied_names: set[str] = set()
        denied_prefixes: set[str] = set()
        for acl in self._of_type(principal, host, resource):
            if acl.operation not in (operation, Operation.ALL):
                continue
            if acl.permission is Permission.ALLOW:
                allowed.append(acl)
            elif acl.pattern is PatternType.PREFIXED:
                denied_prefixes.add(acl.name)
            elif acl.name == WILDCARD:
                return False
            else:
                denied_names.add(acl.name)
        lengths = {len(prefix) for prefix in denied_prefixes}
        for acl in allowed:
            if acl.pattern is PatternType.LITERAL:
                if acl.name == WILDCARD:
                    return True
                if acl.name in denied_names:
                    continue
            if not any(acl.name[:length] in denied_prefixes for length in lengths):
                return True
        return False

    def _of_type(self, principal: str, host: str, resource: ResourceType) -> Iterator[Acl]:
        for whom in {principal, EVERYONE}:
            names = self._by_principal.get((whom, resource))
            if names is not None:
                for acl in names.all():
                    if self._hosts[acl.host] in (WILDCARD, host):
                        yield acl


def allows(granted: Operation, operation: Operation) -> bool:
    """Check whether an ALLOW of `granted` allows `operation`."""
    return granted in (operation, Operation.ALL) or granted in _IMPLIED_BY.get(operation, _NONE)
