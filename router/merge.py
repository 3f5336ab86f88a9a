"""Several workers' answers to one request become one, in the order of the request. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from broker.wire.apis import Api
from broker.wire.schema import Message
from router.routing import SPLITS


def merge(api: Api, keys: Sequence[str], answers: Sequence[Message]) -> Message:
    """The answers of workers to the parts of a request as one.

    `keys` are the groups the client asked for, in its order; those of ListGroups are in no order,
    and none are given: then the answers stand one after another, a group told twice once.
    """
    merged: Any = api.response()
    merged.throttle_time_ms = max(_int(answer, "throttle_time_ms") for answer in answers)
    if hasattr(merged, "error_code"):
        # A fault of one worker is told with what the others know.
        merged.error_code = next(filter(None, (_int(each, "error_code") for each in answers)), 0)
    split = SPLITS.get(api.key)
    field = split.told if split is not None else "groups"
    told = [element for answer in answers for element in getattr(answer, field)]
    setattr(merged, field, _in_order(told, keys) if keys else _once(told))
    return merged  # type: ignore[no-any-return]


def _int(message: Message, field: str) -> int:
    return getattr(message, field, 0)


def _in_order(told: list[Any], keys: Sequence[str]) -> list[Any]:
    """As often as asked for, or as often as told if that is more."""
    by_group: dict[str, list[Any]] = {}
    for element in told:
        by_group.setdefault(element.group_id, []).append(element)
    ordered = []
    for key in keys:
        found = by_group.get(key)
        if found:
            ordered.append(found.pop(0))
    return ordered + [element for left in by_group.values() for element in left]


def _once(told: list[Any]) -> list[Any]:
    first: dict[str, Any] = {}
    for element in told:
        first.setdefault(element.group_id, element)
    return list(first.values())
