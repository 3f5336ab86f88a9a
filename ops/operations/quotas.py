"""Quotas of clients: find and change them."""

from __future__ import annotations

import re

from moldau.broker.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityData,
    EntryRequest,
    OpData,
)
from moldau.broker.wire.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
)
from moldau.ops.client import Cluster, refusal

ENTITIES = ("user", "client-id", "ip")
KEYS = {
    "producer_byte_rate": "bytes per second that are produced, such as 1048576 or 10mb",
    "consumer_byte_rate": "bytes per second that are fetched",
    "request_percentage": "share of a worker's time, in percent: 100 is all of it",
    "controller_mutation_rate": "partitions per second that are created or deleted",
    "connection_creation_rate": "connections per second, of an address (--ip)",
}
EXACT, DEFAULT = 0, 1  # how DescribeClientQuotas compares names

Entity = tuple[tuple[str, str | None], ...]  # type and name; None: the default


def find_quotas(cluster: Cluster, wanted: Entity) -> list[tuple[Entity, dict[str, float]]]:
    """The quotas of entities with these parts; of all if there are none. Raises ClientError."""
    components = [
        ComponentData(kind, DEFAULT if name is None else EXACT, name) for kind, name in wanted
    ]
    answer = cluster.call(DescribeClientQuotasRequest(components))
    if answer.error_code:
        raise refusal("quotas", answer.error_code, answer.error_message)
    found = []
    for entry in answer.entries or ():
        parts = sorted(
            ((one.entity_type, one.entity_name) for one in entry.entity),
            key=lambda part: ENTITIES.index(part[0]) if part[0] in ENTITIES else len(ENTITIES),
        )
        found.append((tuple(parts), {one.key: one.value for one in entry.values}))
    return sorted(found, key=lambda one: [(kind, name or "") for kind, name in one[0]])


def alter_quotas(cluster: Cluster, entity: Entity, changes: dict[str, float | None]) -> None:
    """None removes a quota. Raises ClientError."""
    ops = [OpData(key, value or 0.0, value is None) for key, value in changes.items()]
    entry = EntryRequest([EntityData(*part) for part in entity], ops)
    for result in cluster.call(AlterClientQuotasRequest([entry])).entries:
        if result.error_code:
            raise refusal(
                f"quotas of {entity_text(entity)}", result.error_code, result.error_message
            )


def entity_text(entity: Entity) -> str:
    return ", ".join(
        f"every {kind} without its own" if name is None else f"{kind} {name}"
        for kind, name in entity
    )


_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmg]?)i?b?", re.IGNORECASE)


def parse_rate(text: str) -> float:
    """Raises ValueError."""
    match = _RATE.fullmatch(text.strip())
    if match is None or not float(match[1]):
        raise ValueError(f"want a number above 0 such as 1048576 or 10mb, got {text!r}")
    return float(match[1]) * (1 << {"": 0, "k": 10, "m": 20, "g": 30}[match[2].lower()])
