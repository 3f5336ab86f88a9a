"""Whom a quota is for, and which of several quotas counts for a client.

An entity names a user, a client id, both, or an address. A part that is None is not in the entity,
and DEFAULT stands for all those that have no quota of their own (Kafka's names cannot be empty).
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
        """Type and name of each part."""
        for kind, name in ((USER, self.user), (CLIENT_ID, self.client_id), (IP, self.ip)):
            if name is not None:
                yield kind, name

    def canonical(self) -> str:
        """The field of the entity in the store: `user=alice,client-id=`."""
        return ",".join(f"{kind}={quote(name, safe='')}" for kind, name in self.parts())

    def __str__(self) -> str:
        return ", ".join(f"{kind} {name or '<default>'}" for kind, name in self.parts())


def entity_of(parts: Mapping[str, str]) -> Entity:
    """From names by type; the types are known ones."""
    return Entity(parts.get(USER), parts.get(CLIENT_ID), parts.get(IP))


def read_canonical(text: str) -> Entity:
    """Raises ValueError."""
    parts: dict[str, str] = {}
    for part in text.split(","):
        kind, equals, name = part.partition("=")
        if not equals or kind not in (USER, CLIENT_ID, IP):
            raise ValueError(f"not an entity of quotas: {text!r}")
        parts[kind] = unquote(name)
    return entity_of(parts)


Values = dict[str, float]  # by key, such as PRODUCE


class Shared(msgspec.Struct, frozen=True):
    """Whose use is counted together: a user's whatever its client ids, or the reverse, or one
    client id of one user. With a default quota each name is counted for itself."""

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
        """Whether any quota is for users or client ids."""
        return any(key != CONNECTION for key in self._by_key)

    def limit(self, key: str, user: str, client_id: str) -> tuple[float, Shared] | None:
        """The limit that counts for a client, the most specific one, and with whom it shares it."""
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
        """By address; DEFAULT: for all others."""
        by_entity = self._by_key.get(CONNECTION, {})
        return {entity.ip: rate for entity, rate in by_entity.items() if entity.ip is not None}
