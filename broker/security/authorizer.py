"""The authorizer's interface for handlers, and the one in use while none is configured."""

from __future__ import annotations

from typing import Protocol

from moldau.broker.security.identity import Identity
from moldau.broker.security.resources import Operation, ResourceType


class Authorizer(Protocol):
    @property
    def is_enabled(self) -> bool:
        """If False, everything is allowed, and ACLs cannot be listed or changed."""

    def allows(
        self, identity: Identity, operation: Operation, resource: ResourceType, name: str
    ) -> bool: ...

    def is_super_user(self, identity: Identity) -> bool:
        """True if it may do everything, whatever the ACLs say."""

    def allows_on_any(
        self, identity: Identity, operation: Operation, resource: ResourceType
    ) -> bool:
        """True if it is allowed on any resource of this type (KIP-679)."""


class AllowEverything:
    is_enabled = False

    def is_super_user(self, identity: Identity) -> bool:
        return True

    def allows(
        self, identity: Identity, operation: Operation, resource: ResourceType, name: str
    ) -> bool:
        return True

    def allows_on_any(
        self, identity: Identity, operation: Operation, resource: ResourceType
    ) -> bool:
        return True
