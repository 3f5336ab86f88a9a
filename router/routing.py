"""Decides where a request goes: the head of its frame in, a `Route` out. Pure, no I/O.

    LOCAL    the router replies itself: ApiVersions, FindCoordinator (with an authorizer it
             goes to ANY worker: only workers have ACLs)
    LOGIN    SaslHandshake, SaslAuthenticate: see login.py
    OWNER    exactly this worker: it coordinates the group or the transactional id
    LEADER   preferably this worker, which leads the first partition; another one if it is down
    SPREAD   a Produce to partitions of several leaders; see below
    ANY      any worker: topics, configurations, Metadata (topics live in the store, which the
             router does not read)
    SPLIT    groups or transactional ids of several workers: `parts` has the request to each
    EVERY    all workers: ListGroups, ListTransactions
    MORE     the head is too short to decide
    REFUSED  not served: the connection is closed, since the protocol has no error reply for it

The table of APIs (broker/wire/apis.py) defines how an API is routed. Only the header and the
routing key are read, and the body is forwarded untouched. Requests that name several groups or
transactional ids are decoded; they are rare and short.

A route usually depends only on the first bytes of a request, and clients repeat their requests:
`find_route` returns how many bytes these are, so that the next request that begins with them
(except for its correlation id) need not be looked at again.

Why SPREAD is its own kind: requests of one connection that append to a partition must reach the
log in the order in which they were sent. They do while each goes to the leader of all its
partitions. A Produce to partitions of several leaders breaks that, so a connection that has sent
one sends all its further ones to one worker.
"""

from __future__ import annotations

import struct
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

from msgspec import structs

from moldau.broker.placement import leader_of, owner_of
from moldau.broker.wire.apis import Api, ApiKey, Routing, lookup
from moldau.broker.wire.frame import read_request_header, request_frame
from moldau.broker.wire.primitives import MalformedMessage, read_uvarint, skip_tags
from moldau.router.routing_fields import (
    PRODUCE,
    TXN_OFFSET_COMMIT,
    names_topics_by_id,
    read_count,
    read_first_partition,
    read_produce,
    read_string,
    size_before_topics,
)

# A routing key is within the first bytes: after a client id, a transactional id and a topic.
MAX_HEAD_BYTES = 128 * 1024
# Requests that name several ids are collected completely, up to this size.
MAX_SPLIT_BYTES = 4 << 20
MAX_CACHED_ID_BYTES = 256
# Kafka's sasl.server.max.receive.size: larger requests are not looked at.
MAX_LOGIN_BYTES = 512 * 1024

_HEAD = struct.Struct(">hhih")

# These are compared for every request: module names are cheaper than attributes of the enum.
_LOCAL, _LEADER, _EVERY = Routing.LOCAL, Routing.LEADER, Routing.EVERY
_LOGIN = Routing.LOGIN
_COORDINATOR, _COORDINATORS = Routing.COORDINATOR, Routing.COORDINATORS


class RouteKind(Enum):
    LOCAL = "local"
    LOGIN = "login"
    OWNER = "owner"
    LEADER = "leader"
    SPREAD = "spread"
    ANY = "any"
    SPLIT = "split"
    EVERY = "every"
    MORE = "more"
    REFUSED = "refused"


class RequestPart(NamedTuple):
    """The part of a split request that one worker gets."""

    worker: int
    frame: bytes  # with its length
    request: Any


class Route(NamedTuple):
    kind: RouteKind
    worker: int = -1
    is_produce: bool = False
    has_reply: bool = True  # False: Produce with acks=0
    parts: tuple[RequestPart, ...] = ()
    keys: tuple[str, ...] = ()  # the ids in a split request, in its order


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

LOCAL = Route(RouteKind.LOCAL)
LOGIN = Route(RouteKind.LOGIN)
ANY = Route(RouteKind.ANY)
ANY_WITHOUT_REPLY = Route(RouteKind.ANY, has_reply=False)
EVERY = Route(RouteKind.EVERY)
MORE = Route(RouteKind.MORE)
REFUSED = Route(RouteKind.REFUSED)


class RoutingTable:
    """The routes to each of the workers, created once."""

    def __init__(
        self, workers: int, *, has_authorizer: bool = False, has_telemetry: bool = False
    ) -> None:
        self.workers = workers
        self.has_authorizer = has_authorizer
        self.has_telemetry = has_telemetry
        every = range(workers)
        self.owner = [Route(RouteKind.OWNER, worker) for worker in every]
        self.leader = [Route(RouteKind.LEADER, worker) for worker in every]
        self.produce = [Route(RouteKind.LEADER, worker, True) for worker in every]
        self.produce_without_reply = [
            Route(RouteKind.LEADER, worker, True, False) for worker in every
        ]


def find_route(head: bytes, size: int, table: RoutingTable) -> tuple[Route, int]:
    """Return the route of a request whose frame has `size` bytes and begins with `head`, and the
    number of its first bytes on which the route depends.

    Requests that agree in these bytes, except for the correlation id, have the same route. 0 means
    that it may depend on any byte. Raises MalformedMessage if this cannot be a request.
    """
    try:
        return _find_route(head, size, table)
    except (IndexError, struct.error) as fault:
        if len(head) < size and len(head) < MAX_HEAD_BYTES:
            return MORE, 0
        raise MalformedMessage(f"request ends before its routing key: {fault}") from None
    except UnicodeDecodeError as fault:
        raise MalformedMessage(f"group or transactional id: {fault}") from None


def _find_route(head: bytes, size: int, table: RoutingTable) -> tuple[Route, int]:
    key, version, _, client_id = _HEAD.unpack_from(head)
    api = lookup(key, version)
    if api is None:
        return LOCAL if key == ApiKey.API_VERSIONS else REFUSED, 0
    at = _HEAD.size + max(client_id, 0)
    if at > size:
        raise MalformedMessage(f"client id of {client_id} bytes overruns the frame")
    flexible = version >= api.flexible_from
    if flexible:
        tags = head[at]
        at += 1
        if tags:
            tags, at = read_uvarint(head, at - 1)
            at = skip_tags(head, at, size, tags)
    routing = api.routing
    if routing is _LEADER:
        if key == PRODUCE:
            return _route_produce(head, at, version, flexible, size, table)
        topics_at = at + size_before_topics(key, version)
        by_id = names_topics_by_id(key, version)
        first, end = read_first_partition(head, topics_at, flexible, by_id)
        if first is None:
            return ANY, end
        return table.leader[leader_of(first.topic, first.partition, table.workers)], end
    if routing is _COORDINATORS and version >= SPLIT_FIELDS[api.key].since_version:
        ids, first_id = read_count(head, at, flexible)
        if ids != 1 and table.workers > 1:
            return _split(head, at, size, api, version, table), 0
        if ids < 1:
            return ANY, first_id
        at = first_id  # one id, or a single worker: the first one decides
    if routing is _COORDINATOR or routing is _COORDINATORS:
        if key == TXN_OFFSET_COMMIT:  # the owner of the group, not of the transactional id
            _, at = read_string(head, at, flexible)
        # The key is the first field in all other requests; a transactional id may be null.
        name, end = read_string(head, at, flexible)
        return ANY if name is None else table.owner[_owner(name, table.workers)], end
    if routing is _LOCAL and not (table.has_authorizer and key == ApiKey.FIND_COORDINATOR):
        return LOCAL if len(head) == size else _wait_for_all(api, size, MAX_HEAD_BYTES), 0
    if routing is _LOGIN:
        return LOGIN if len(head) == size else _wait_for_all(api, size, MAX_LOGIN_BYTES), 0
    if routing is _EVERY and table.workers > 1:
        return EVERY if len(head) == size else _wait_for_all(api, size, MAX_HEAD_BYTES), 0
    if api.is_telemetry and not table.has_telemetry:
        return REFUSED, 0
    return ANY, at


def _wait_for_all(api: Api, size: int, limit: int) -> Route:
    """Requests that the router decodes, or sends to several workers, must be received
    completely."""
    if size > limit:
        raise MalformedMessage(f"{api.name} of {size} bytes (at most {limit})")
    return MORE


def _owner(name: bytes, workers: int) -> int:
    """Return the worker that coordinates a group or transactional id, given as encoded on the
    wire."""
    if len(name) > MAX_CACHED_ID_BYTES:
        return owner_of(name.decode(), workers)
    return _cached_owner(name, workers)


@lru_cache(maxsize=8192)
def _cached_owner(name: bytes, workers: int) -> int:
    return owner_of(name.decode(), workers)


def _route_produce(
    head: bytes, at: int, version: int, flexible: bool, size: int, table: RoutingTable
) -> tuple[Route, int]:
    found = read_produce(head, at, version, flexible, size)
    has_reply = found.acks != 0
    if found.first is None:
        return ANY if has_reply else ANY_WITHOUT_REPLY, 0
    workers = table.workers
    to_leader = table.produce if has_reply else table.produce_without_reply
    if workers == 1:
        return to_leader[0], found.end
    topic, partition = found.first
    leader = leader_of(topic, partition, workers)
    partitions = found.partitions
    if partitions is not None and (
        len(partitions) == 1 or all(leader_of(*each, workers) == leader for each in partitions)
    ):
        return to_leader[leader], found.end
    # All producers of a topic use the same worker, so that their appends do not compete.
    return Route(RouteKind.SPREAD, leader_of(topic, 0, workers), True, has_reply), 0


def _split(head: bytes, at: int, size: int, api: Api, version: int, table: RoutingTable) -> Route:
    if len(head) < size:
        return _wait_for_all(api, size, MAX_SPLIT_BYTES)
    header = read_request_header(head)
    request, _ = api.request_codec(version).decode(head, at)
    fields = SPLIT_FIELDS[api.key]
    by_owner: dict[int, list[Any]] = {}
    keys = []
    for element in getattr(request, fields.in_request):
        name = getattr(element, fields.key) if fields.key else element
        keys.append(name)
        by_owner.setdefault(_owner(name.encode(), table.workers), []).append(element)
    if not by_owner:
        return ANY
    if len(by_owner) == 1:
        return table.owner[next(iter(by_owner))]
    parts = []
    for worker, elements in by_owner.items():
        part = structs.replace(request, **{fields.in_request: elements})
        frame = request_frame(api, version, header.correlation_id, header.client_id, part)
        parts.append(RequestPart(worker, frame, part))
    return Route(RouteKind.SPLIT, parts=tuple(parts), keys=tuple(keys))
