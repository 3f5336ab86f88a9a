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
from typing import NamedTuple

from moldau.broker.placement import leader_of, owner_of
from moldau.broker.wire.apis import Api, ApiKey, Routing, lookup
from moldau.broker.wire.primitives import MalformedMessage, read_uvarint, skip_tags
from moldau.router.split import SPLIT_FIELDS, RequestPart, split

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
TOPIC_ID_SIZE = 16

# These are compared for every request: module names are cheaper than members of the enum.
PRODUCE, FETCH = ApiKey.PRODUCE, ApiKey.FETCH
LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH = ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH
TXN_OFFSET_COMMIT = ApiKey.TXN_OFFSET_COMMIT
# A Produce to more partitions than this is not walked to its end.
MAX_PARTITIONS_WALKED = 64


class TopicPartition(NamedTuple):
    """A partition as a request names it: the topic by name or by id."""

    topic: bytes
    partition: int


class ProduceFields(NamedTuple):
    acks: int
    first: TopicPartition | None
    # Every partition of the request; None if not all of them were read.
    partitions: list[TopicPartition] | None
    # Where the first partition ends if it is the only one, otherwise 0.
    end: int = 0


# --- the few fields that decide ---
#
# They are read from the head of a frame, which may end anywhere: reading past the received bytes
# raises IndexError or struct.error, and the caller waits for more.


def read_string(head: bytes, at: int, flexible: bool) -> tuple[bytes | None, int]:
    """Return a string (compact if flexible) and the position after it."""
    if flexible:
        size, at = read_uvarint(head, at)
        size -= 1
    else:
        (size,) = _INT16.unpack_from(head, at)
        at += 2
    if size < 0:
        return None, at
    end = at + size
    if end > len(head):
        raise IndexError("a string continues past the received bytes")
    return head[at:end], end


def read_count(head: bytes, at: int, flexible: bool) -> tuple[int, int]:
    """Return the length of an array and the position of its first element."""
    if flexible:
        number, at = read_uvarint(head, at)
        return number - 1, at
    (number,) = _INT32.unpack_from(head, at)
    return number, at + 4


def _read_topic(head: bytes, at: int, flexible: bool, by_id: bool) -> tuple[bytes, int]:
    if not by_id:
        name, at = read_string(head, at, flexible)
        return name or b"", at
    end = at + TOPIC_ID_SIZE
    if end > len(head):
        raise IndexError("a topic id continues past the received bytes")
    return head[at:end], end


def size_before_topics(key: int, version: int) -> int:
    """Return the size of the fixed fields that precede the topics of a request that names
    partitions."""
    if key == FETCH:
        # Replica id, max wait, min and max bytes, isolation level, session id and epoch.
        return (4 if version <= 14 else 0) + 13 + (8 if version >= 7 else 0)
    if key == LIST_OFFSETS:
        return 4 + (1 if version >= 2 else 0)  # replica id, isolation level
    if key == OFFSET_FOR_LEADER_EPOCH:
        return 4 if version >= 3 else 0  # replica id
    return 0  # DeleteRecords, DescribeProducers


def names_topics_by_id(key: int, version: int) -> bool:
    return key in (PRODUCE, FETCH) and version >= 13


def read_first_partition(
    head: bytes, at: int, flexible: bool, by_id: bool
) -> tuple[TopicPartition | None, int]:
    """Return the first partition of an array of topics at `at` (None if there is no topic), and the
    position after the fields read for it."""
    topics, at = read_count(head, at, flexible)
    if topics <= 0:
        return None, at
    topic, at = _read_topic(head, at, flexible, by_id)
    partitions, at = read_count(head, at, flexible)
    if partitions <= 0:
        return TopicPartition(topic, 0), at
    (partition,) = _INT32.unpack_from(head, at)
    return TopicPartition(topic, partition), at + 4


def read_produce(head: bytes, at: int, version: int, flexible: bool, size: int) -> ProduceFields:
    """Read the fields of a Produce whose body begins at `at`; `size` is the size of the whole
    frame."""
    if version >= 3:
        _, at = read_string(head, at, flexible)  # transactional id
    (acks,) = _INT16.unpack_from(head, at)
    at += 6  # acks and timeout
    by_id = names_topics_by_id(PRODUCE, version)
    topics, inside = read_count(head, at, flexible)
    if topics <= 0:
        return ProduceFields(acks, None, [])
    topic, inside = _read_topic(head, inside, flexible, by_id)
    partitions, inside = read_count(head, inside, flexible)
    first = TopicPartition(topic, _INT32.unpack_from(head, inside)[0] if partitions > 0 else 0)
    if topics == 1 and partitions <= 1:  # the usual case: nothing to walk over
        return ProduceFields(acks, first, [first], inside + 4 if partitions == 1 else 0)
    try:
        found = _walk_partitions(head, at, flexible, by_id, size)
    except (IndexError, struct.error):
        if len(head) == size:
            raise
        found = None  # the frame has not been received completely
    # The first topic may name no partition.
    return ProduceFields(acks, found[0] if found else first, found)


def _walk_partitions(
    head: bytes, at: int, flexible: bool, by_id: bool, size: int
) -> list[TopicPartition] | None:
    """Return every partition of a Produce, skipping the records between them by their lengths."""
    found = []
    topics, at = read_count(head, at, flexible)
    for number in range(topics):
        topic, at = _read_topic(head, at, flexible, by_id)
        partitions, at = read_count(head, at, flexible)
        for index in range(partitions):
            (partition,) = _INT32.unpack_from(head, at)
            found.append(TopicPartition(topic, partition))
            if number == topics - 1 and index == partitions - 1:
                return found  # the records of the last one need not be received yet
            if len(found) > MAX_PARTITIONS_WALKED:
                return None
            records, at = read_count(head, at + 4, flexible)
            at += max(records, 0)
            if flexible:
                at = _skip_tags(head, at, size)
        if flexible:
            at = _skip_tags(head, at, size)
    return found


def _skip_tags(head: bytes, at: int, size: int) -> int:
    tags = head[at]
    if tags == 0:
        return at + 1
    tags, at = read_uvarint(head, at)
    return skip_tags(head, at, size, tags)


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


class Route(NamedTuple):
    kind: RouteKind
    worker: int = -1
    is_produce: bool = False
    has_reply: bool = True  # False: Produce with acks=0
    parts: tuple[RequestPart, ...] = ()
    keys: tuple[str, ...] = ()  # the ids in a split request, in its order


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
    parts, keys = split(head, at, api, version, lambda name: _owner(name, table.workers))
    if not parts:
        return ANY
    if len(parts) == 1:
        return table.owner[parts[0].worker]
    return Route(RouteKind.SPLIT, parts=tuple(parts), keys=keys)
