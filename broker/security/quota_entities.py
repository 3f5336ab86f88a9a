"""The entities of quotas, and which of several quotas applies to a client.

An entity names a user, a client id, both, or an address. A part that is None is not in the entity,
and DEFAULT stands for all that have no quota of their own (Kafka's names cannot be empty).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import quote, unquote

import msgspec

PRODUCE = "producer_byte_rate"
FETCH = "consumer_byte_rate"
REQUEST = "request_percentage"
MUTATION = "controller_mutation_rate"
CONNECTION = "connection_creation_rate"

USER, CLIENT_ID, IP = "user", "client-id", "ip"
DEFAULT = ""


class Entity(msgspec.Struct, frozen=True, order=True):
    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    def parts(self) -> Iterator[tuple[str, str]]:
        """Return the type and name of each part."""
        for kind, name in ((USER, self.user), (CLIENT_ID, self.client_id), (IP, self.ip)):
            if name is not None:
                yield kind, name

    def canonical(self) -> str:
        """The name of the entity's field in the store: `user=alice,client-id=`."""
        return ",".join(f"{kind}={quote(name, safe='')}" for kind, name in self.parts())

    def __str__(self) -> str:
        return ", ".join(f"{kind} {name or '<default>'}" for kind, name in self.parts())


def entity_of(parts: Mapping[str, str]) -> Entity:
    """Build an entity from names by type. The types must be known ones."""
    return Entity(parts.get(USER), parts.get(CLIENT_ID), parts.get(IP))


def read_canonical(text: str) -> Entity:
    """Parse a canonical name. Raises ValueError."""
    parts: dict[str, str] = {}
    for part in text.split(","):
        kind, equals, name = part.partition("=")
        if not equals or kind not in (USER, CLIENT_ID, IP):
            raise ValueError(f"not an entity of quotas: {text!r}")
        parts[kind] = unquote(name)
    return entity_of(parts)


Values = dict[str, float]  # by key, such as PRODUCE


class Shared(msgspec.Struct, frozen=True):
    """The clients whose usage is counted together: a user with all its client ids, the reverse, or
    one client id of one user. Under a default quota each name is counted separately."""

    user: str | None
    client_id: str | None


class QuotaTable:
    """All quotas in force."""

    def __init__(self, quotas: Mapping[Entity, Values]) -> None:
        self.quotas = dict(quotas)
        self._by_key: dict[str, dict[Entity, float]] = {}
        for entity, values in quotas.items():
            for key, value in values.items():
                self._by_key.setdefault(key, {})[entity] = value

    @property
    def limits_clients(self) -> bool:
        """True if any quota is for users or client ids."""
        return any(key != CONNECTION for key in self._by_key)

    def limit(self, key: str, user: str, client_id: str) -> tuple[float, Shared] | None:
        """Return the most specific limit for a client, and with whom it shares the limit."""
        by_entity = self._by_key.get(key)
        if not by_entity:
            return None
        both, by_user, by_client = (
            Shared(user, client_id),
            Shared(user, None),
            Shared(None, client_id),
        )
        for entity, shared in (
            (Entity(user, client_id), both),
            (Entity(user, DEFAULT), both),
            (Entity(user), by_user),
            (Entity(DEFAULT, client_id), both),
            (Entity(DEFAULT, DEFAULT), both),
            (Entity(DEFAULT), by_user),
            (Entity(None, client_id), by_client),
            (Entity(None, DEFAULT), by_client),
        ):
            value = by_entity.get(entity)
            if value is not None:
                return value, shared
        return None

    @property
    def connection_rates(self) -> dict[str, float]:
        """Return the connection rates by address; DEFAULT is for all others."""
        by_entity = self._by_key.get(CONNECTION, {})
        return {entity.ip: rate for entity, rate in by_entity.items() if entity.ip is not None}
