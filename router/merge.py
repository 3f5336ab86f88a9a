"""Several workers' responses to one request become one, in the order of the request. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from broker.wire.apis import Api
from broker.wire.schema import Message
from router.routing import SPLIT_FIELDS


def merge(api: Api, keys: Sequence[str], responses: Sequence[Message]) -> Message:
    """One response out of the responses to the parts of a request.

    `keys` are the groups of the request, in its order. ListGroups names none: its groups follow one
    another in the order of the responses, and a group that two workers list appears once.
    """
    merged: Any = api.response()
    merged.throttle_time_ms = max(_int(each, "throttle_time_ms") for each in responses)
    if hasattr(merged, "error_code"):
        # The error of one worker stands beside the groups of the others.
        merged.error_code = next(filter(None, (_int(each, "error_code") for each in responses)), 0)
    fields = SPLIT_FIELDS.get(api.key)
    field = fields.in_response if fields is not None else "groups"
    groups = [group for response in responses for group in getattr(response, field)]
    setattr(merged, field, _in_order_of(keys, groups) if keys else _without_repeats(groups))
    return merged  # type: ignore[no-any-return]


def _int(message: Message, field: str) -> int:
    return getattr(message, field, 0)


def _in_order_of(keys: Sequence[str], groups: list[Any]) -> list[Any]:
    """Each group as often as it was asked for, or as often as it was returned if that is more."""
    by_id: dict[str, list[Any]] = {}
    for group in groups:
        by_id.setdefault(group.group_id, []).append(group)
    ordered = []
    for key in keys:
        found = by_id.get(key)
        if found:
            ordered.append(found.pop(0))
    return ordered + [group for rest in by_id.values() for group in rest]


def _without_repeats(groups: list[Any]) -> list[Any]:
    first: dict[str, Any] = {}
    for group in groups:
        first.setdefault(group.group_id, group)
    return list(first.values())
