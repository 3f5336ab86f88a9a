"""The checks of DescribeClientQuotas and AlterClientQuotas.

Refusals and their codes are Kafka's (ClientQuotasImage, ClientQuotaControlManager).
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum

from moldau.broker.errors import ErrorCode, KafkaError
from moldau.broker.security.quota_entities import (
    CLIENT_ID,
    CONNECTION,
    DEFAULT,
    FETCH,
    IP,
    MUTATION,
    PRODUCE,
    REQUEST,
    USER,
    Entity,
    Values,
    entity_of,
)

MAX_LONG = (1 << 63) - 1
MAX_INT = (1 << 31) - 1
# For each key, the largest value and whether it has to be a whole number.
CLIENT_KEYS = {
    PRODUCE: (MAX_LONG, True),
    FETCH: (MAX_LONG, True),
    REQUEST: (math.inf, False),
    MUTATION: (math.inf, False),
}
IP_KEYS = {CONNECTION: (MAX_INT, True)}


class Match(IntEnum):
    EXACT = 0
    DEFAULT = 1
    ANY = 2


def _refusal(text: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, text)


# --- describing ---


class Filter:
    """Selects entities."""

    def __init__(self, components: Iterable[tuple[str, int, str | None]], *, strict: bool) -> None:
        """Takes type, match and name of each component. Raises KafkaError."""
        self._strict = strict
        self._wanted: dict[str, str | None] = {}  # None matches any name, and the default
        for kind, match, name in components:
            if not kind:
                raise _refusal("an entity type is empty")
            if kind in self._wanted:
                raise _refusal(f"entity type {kind} appears more than once in the filter")
            if kind not in (USER, CLIENT_ID, IP):
                text = f"entity type {kind!r} is not supported"
                raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, text)
            if match not in tuple(Match):
                raise _refusal(f"match type {match} is unknown")
            if (match == Match.EXACT) != (name is not None):
                raise _refusal(f"a name is given for exact matches only, {kind} has {name!r}")
            self._wanted[kind] = {Match.EXACT: name, Match.DEFAULT: DEFAULT}.get(Match(match))
        if IP in self._wanted and len(self._wanted) > 1:
            raise _refusal("ip cannot be asked for together with user or client-id")

    def matches(self, entity: Entity) -> bool:
        parts = dict(entity.parts())
        if self._strict and parts.keys() != self._wanted.keys():
            return False
        return all(
            kind in parts and wanted in (None, parts[kind]) for kind, wanted in self._wanted.items()
        )


# --- altering ---


def checked_entity(parts: Iterable[tuple[str, str | None]]) -> Entity:
    """Build an entity from type and name of each part; None names the default. Raises
    KafkaError."""
    names: dict[str, str] = {}
    for kind, name in parts:
        if kind in names:
            raise _refusal(f"the entity has two parts of type {kind}")
        if kind not in (USER, CLIENT_ID, IP):
            raise _refusal(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _refusal(f"Empty {kind} not supported")
        names[kind] = DEFAULT if name is None else name
    if not names or (IP in names and len(names) > 1):
        raise _refusal("an entity is a user, a client-id, both of them, or an ip")
    if names.get(IP):
        names[IP] = _checked_address(names[IP])
    return entity_of(names)


def _checked_address(name: str) -> str:
    """Refuse host names, unlike Kafka: what a name resolves to changes, and resolving takes
    time."""
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        raise _refusal(f"{name!r} is not a valid IP address") from None


def checked_changes(
    entity: Entity, operations: Iterable[tuple[str, float, bool]]
) -> dict[str, float | None]:
    """Build the changes from key, value and whether to remove it; None removes. Raises
    KafkaError."""
    keys: Mapping[str, tuple[float, bool]] = IP_KEYS if entity.ip is not None else CLIENT_KEYS
    changes: dict[str, float | None] = {}
    for key, value, remove in operations:
        if key in changes:
            raise _refusal(f"Duplicate quota key {key}")
        if remove:
            changes[key] = None
            continue
        if key not in keys:
            raise _refusal(f"Invalid configuration key {key}")
        most, is_whole = keys[key]
        if not value > 0:  # NaN is not allowed either
            raise _refusal(f"Quota {key} must be greater than 0")
        if value > most or math.isinf(value):
            raise _refusal(f"Quota {key} must be at most {most:.0f}")
        if is_whole and value != math.floor(value):
            raise _refusal(f"Quota {key} must be a whole number")
        changes[key] = value
    return changes


def altered(values: Values, changes: Mapping[str, float | None]) -> Values:
    new = {**values, **changes}
    return {key: value for key, value in new.items() if value is not None}


def matching(quotas: Mapping[Entity, Values], wanted: Filter) -> Iterator[tuple[Entity, Values]]:
    for entity in sorted(quotas, key=Entity.canonical):
        if wanted.matches(entity):
            yield entity, quotas[entity]
