"""Requests that concern several workers: split by owner, and the reply, merged from theirs in the
order of the request. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from msgspec import structs

from moldau.broker.wire.apis import Api, ApiKey
from moldau.broker.wire.frame import (
    read_request_header,
    read_response,
    request_frame,
    response_frame,
)
from moldau.broker.wire.schema import Message
from moldau.router.unavailable import unavailable_response


class RequestPart(NamedTuple):
    """The part of a split request that one worker gets."""

    worker: int
    frame: bytes  # with its length
    request: Any


class SplitFields(NamedTuple):
    """How to find the ids in a request that may be split, and in its response."""

    in_request: str  # a list of ids, or of structures that contain one
    key: str  # the first field of such a structure; "": the element is the id
    in_response: str  # a list of structures
    response_key: str  # the field of such a structure
    since_version: int = 0


SPLIT_FIELDS: dict[ApiKey, SplitFields] = {
    ApiKey.OFFSET_FETCH: SplitFields("groups", "group_id", "groups", "group_id", since_version=8),
    ApiKey.DESCRIBE_GROUPS: SplitFields("groups", "", "groups", "group_id"),
    ApiKey.CONSUMER_GROUP_DESCRIBE: SplitFields("group_ids", "", "groups", "group_id"),
    ApiKey.DELETE_GROUPS: SplitFields("groups_names", "", "results", "group_id"),
    ApiKey.ADD_PARTITIONS_TO_TXN: SplitFields(
        "transactions",
        "transactional_id",
        "results_by_transaction",
        "transactional_id",
        since_version=4,
    ),
    ApiKey.DESCRIBE_TRANSACTIONS: SplitFields(
        "transactional_ids", "", "transaction_states", "transactional_id"
    ),
}

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


def split(
    frame: bytes, at: int, api: Api, version: int, owner: Callable[[bytes], int]
) -> tuple[list[RequestPart], tuple[str, ...]]:
    """Split a request, whose body begins at `at`, by the owners of the ids that it names. Returns
    the parts, and the ids in its order."""
    header = read_request_header(frame)
    request, _ = api.request_codec(version).decode(frame, at)
    fields = SPLIT_FIELDS[api.key]
    by_owner: dict[int, list[Any]] = {}
    keys: list[str] = []
    for element in getattr(request, fields.in_request):
        name = getattr(element, fields.key) if fields.key else element
        keys.append(name)
        by_owner.setdefault(owner(name.encode()), []).append(element)
    if len(by_owner) < 2:
        return [RequestPart(worker, frame, request) for worker in by_owner], tuple(keys)
    parts = []
    for worker, elements in by_owner.items():
        part = structs.replace(request, **{fields.in_request: elements})
        written = request_frame(api, version, header.correlation_id, header.client_id, part)
        parts.append(RequestPart(worker, written, part))
    return parts, tuple(keys)


class GatheredReply:
    """Collects the workers' responses. `frame` is the merged response frame once all have
    arrived."""

    __slots__ = ("_api", "_correlation_id", "_keys", "_requests", "_responses", "_version", "frame")

    def __init__(
        self,
        api: Api,
        version: int,
        correlation_id: int,
        keys: Sequence[str],
        parts: Sequence[RequestPart],
    ) -> None:
        self._api = api
        self._version = version
        self._correlation_id = correlation_id
        self._keys = keys
        self._requests: dict[int, Any] = {part.worker: part.request for part in parts}
        self._responses: dict[int, Message] = {}
        self.frame: bytes | None = None

    def deliver(self, worker: int, frame: bytes) -> None:
        """Take a worker's response frame, without its length. Raises MalformedMessage."""
        _, message = read_response(self._api, self._version, frame)
        self._add(worker, message)

    def fail(self, worker: int) -> None:
        """Answer the part of a worker that is down with COORDINATOR_NOT_AVAILABLE."""
        message = unavailable_response(self._api, self._version, self._requests[worker])
        assert message is not None, f"{self._api.name} is split and has no error response"
        self._add(worker, message)

    def _add(self, worker: int, message: Message) -> None:
        self._responses[worker] = message
        if len(self._responses) == len(self._requests):
            merged = merge(
                self._api, self._keys, [self._responses[each] for each in self._requests]
            )
            self.frame = b"".join(
                response_frame(self._api, self._version, self._correlation_id, merged)
            )
