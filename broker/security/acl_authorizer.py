"""The authorizer that decides by ACLs: super users first, then cached decisions, then the index.

Decisions are cached per principal and address, so that a request like an earlier one costs two
look-ups. The cache is cleared when the ACLs change.
"""

from __future__ import annotations

from moldau.broker.security.acl import Acl, canonical_host
from moldau.broker.security.acl_index import AclIndex
from moldau.broker.security.identity import Identity
from moldau.broker.security.resources import Operation, ResourceType

MAX_REMEMBERED = 50_000  # decisions of all clients: 20 MB with the longest names
MAX_NAME = 256  # length of a resource name: decisions on longer names are not cached
# Kafka asks for this name to find out what a client may do if no ACL applies.
_NO_NAME = "hardcode"

Decisions = dict[tuple[Operation, ResourceType, str], bool]


class AclAuthorizer:
    is_enabled = True

    def __init__(
        self, super_users: frozenset[str] = frozenset(), *, allow_if_no_acl: bool = False
    ) -> None:
        self.super_users = super_users
        self._allow_if_no_acl = allow_if_no_acl
        self._index = AclIndex()
        self._decisions: dict[tuple[str, str], Decisions] = {}
        self._decisions_on_any: dict[tuple[str, str, Operation, ResourceType], bool] = {}
        self._remembered = 0

    @property
    def acls(self) -> set[Acl]:
        return self._index.acls

    def use(self, index: AclIndex) -> None:
        """Use other ACLs."""
        self._index = index
        self._forget()

    def is_super_user(self, identity: Identity) -> bool:
        return identity.is_trusted or identity.principal in self.super_users

    def allows(
        self, identity: Identity, operation: Operation, resource: ResourceType, name: str
    ) -> bool:
        try:
            return self._decisions[identity.principal, identity.host][operation, resource, name]
        except KeyError:
            return self._decide(identity, operation, resource, name)

    def _decide(
        self, identity: Identity, operation: Operation, resource: ResourceType, name: str
    ) -> bool:
        # Decisions for trusted identities are not cached: a client may have the same principal and
        # address.
        if identity.is_trusted:
            return True
        principal, host = identity.principal, identity.host
        allowed = principal in self.super_users or self._by_acls(
            principal, host, operation, resource, name
        )
        if len(name) <= MAX_NAME:
            if self._remembered >= MAX_REMEMBERED:
                self._forget()
            self._remembered += 1
            decisions = self._decisions.setdefault((principal, host), {})
            decisions[operation, resource, name] = allowed
        return allowed

    def _by_acls(
        self, principal: str, host: str, operation: Operation, resource: ResourceType, name: str
    ) -> bool:
        index = self._index
        decided = index.decide(principal, canonical_host(host), operation, resource, name)
        if decided is None:
            return self._allow_if_no_acl and not index.names(resource, name)
        return decided

    def allows_on_any(
        self, identity: Identity, operation: Operation, resource: ResourceType
    ) -> bool:
        if self.is_super_user(identity):
            return True
        principal, host = identity.principal, identity.host
        key = (principal, host, operation, resource)
        known = self._decisions_on_any.get(key)
        if known is None:
            known = self._by_acls(
                principal, host, operation, resource, _NO_NAME
            ) or self._index.decide_on_any(principal, canonical_host(host), operation, resource)
            if self._remembered >= MAX_REMEMBERED:
                self._forget()
            self._remembered += 1
            self._decisions_on_any[key] = known
        return known

    def _forget(self) -> None:
        self._decisions.clear()
        self._decisions_on_any.clear()
        self._remembered = 0


def parse_super_users(text: str) -> frozenset[str]:
    """Parse `User:admin;User:CN=ops,O=x`, as in Kafka. Raises ValueError."""
    users = {part.strip() for part in text.split(";")} - {""}
    for user in users:
        if not all(user.partition(":")):
            raise ValueError(f"{user!r} is not a principal: User:<name>")
    return frozenset(users)
