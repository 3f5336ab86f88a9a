"""The last values that a client has pushed, within bounds: others see these names and labels.

A push replaces the one before it, so that nodes and partitions that the client has left disappear.
Only metrics that were asked for are kept. Counters are asked for as totals; if a client pushes
differences nevertheless, they are added up.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from moldau.broker.metrics.document import ClientValue
from moldau.broker.telemetry.otlp import Attributes, Metrics
from moldau.broker.telemetry.subscriptions import ALL, Wanted

MAX_PER_CLIENT = 256
MAX_ATTRIBUTES = 6
MAX_TEXT = 256  # characters of an attribute's value
KAFKA = "org.apache.kafka."
# Attributes of the client, not of a single value (KIP-714).
RESOURCE = (
    "client_rack",
    "group_id",
    "group_instance_id",
    "group_member_id",
    "transactional_id",
)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,199}")
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")

Key = tuple[str, Attributes]


class Values:
    __slots__ = ("_totals", "by_key", "resource")

    def __init__(self) -> None:
        self.by_key: dict[Key, ClientValue] = {}
        self.resource: dict[str, str] = {}
        self._totals: dict[Key, float] = {}  # of counters that come as differences

    def push(self, metrics: Metrics, wanted: Wanted) -> None:
        found: dict[Key, ClientValue] = {}
        totals = self._totals
        prefixes = ("",) if wanted.metrics == (ALL,) else wanted.metrics
        for point in metrics.points:
            if not point.name.startswith(prefixes) or not _NAME.fullmatch(point.name):
                continue
            name, attributes = point.name.removeprefix(KAFKA), _bounded(point.attributes)
            key = name, attributes
            if key not in found and len(found) >= MAX_PER_CLIENT:
                continue
            value = point.value
            if point.is_delta and math.isfinite(value):
                value += totals.get(key, 0.0)
                totals[key] = value
            if math.isfinite(value):  # Java sends NaN as the average of nothing
                found[key] = ClientValue(name, attributes, value, point.is_counter)
        self._totals = {key: total for key, total in totals.items() if key in found}
        self.by_key = found
        self.resource = _resource(metrics.resource)

    def __len__(self) -> int:
        return len(self.by_key)


def _bounded(attributes: Attributes) -> Attributes:
    if not attributes:
        return attributes
    kept = [(key, value[:MAX_TEXT]) for key, value in attributes if _KEY.fullmatch(key)]
    return tuple(kept[:MAX_ATTRIBUTES])


def _resource(attributes: Mapping[str, str]) -> dict[str, str]:
    return {name: attributes[name][:MAX_TEXT] for name in RESOURCE if attributes.get(name)}
