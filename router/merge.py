"""Merges the responses of several workers to one request, in the order of the request. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from moldau.broker.wire.apis import Api, ApiKey
from moldau.broker.wire.schema import Message
from moldau.router.routing import SPLIT_FIELDS

# For responses in which every worker lists its own items: the list, and the id of its items.
LISTS = {
    ApiKey.LIST_GROUPS: ("groups", "group_id"),
    ApiKey.LIST_TRANSACTIONS: ("transaction_states", "transactional_id"),
}


def merge(api: Api, keys: Sequence[str], responses: Sequence[Message]) -> Message:
    """Merge the responses to the parts of a request.

    `keys` are the groups or transactional ids of the request, in its order. ListGroups and
    ListTransactions name none: the workers' lists are joined in the order of the responses, and an
    item that two of them list appears once.
    """
    merged: Any = api.response()
    merged.throttle_time_ms = max(_int(each, "throttle_time_ms") for each in responses)
    if hasattr(merged, "error_code"):
        # The error of one worker is returned together with the groups of the others.
        merged.error_code = next(filter(None, (_int(each, "error_code") for each in responses)), 0)
    if hasattr(merged, "unknown_state_filters"):
        # Every worker that is up returns the same ones.
        names = (name for each in responses for name in _list(each, "unknown_state_filters"))
        merged.unknown_state_filters = list(dict.fromkeys(names))
    fields = SPLIT_FIELDS.get(api.key)
    field, key = LISTS[api.key] if fields is None else (fields.in_response, fields.response_key)
    items = [item for response in responses for item in _list(response, field)]
    ordered = _in_order_of(keys, items, key) if keys else _without_repeats(items, key)
    setattr(merged, field, ordered)
    return merged  # type: ignore[no-any-return]


def _int(message: Message, field: str) -> int:
    return getattr(message, field, 0)


def _list(message: Message, field: str) -> list[Any]:
    return getattr(message, field)  # type: ignore[no-any-return]


def _in_order_of(keys: Sequence[str], items: list[Any], key: str) -> list[Any]:
    """Return each item as often as it was asked for, or as often as it was returned if that is
    more."""
    id_of = attrgetter(key)
    by_id: dict[str, list[Any]] = {}
    for item in items:
        by_id.setdefault(id_of(item), []).append(item)
    ordered = []
    for asked in keys:
        found = by_id.get(asked)
        if found:
            ordered.append(found.pop(0))
    return ordered + [item for rest in by_id.values() for item in rest]


def _without_repeats(items: list[Any], key: str) -> list[Any]:
    id_of = attrgetter(key)
    first: dict[str, Any] = {}
    for item in items:
        first.setdefault(id_of(item), item)
    return list(first.values())
