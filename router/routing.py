"""Where a request goes: the head of its frame in, a plan out. Pure, no I/O.

    LOCAL    the router answers itself: ApiVersions, FindCoordinator
    OWNER    exactly this worker: it coordinates the group or the transactional id
    LEADER   this worker by preference, another if it is away: it leads the first partition named
    SPREAD   a Produce to partitions of several leaders; see below
    ANY      whichever worker: topics, configurations, Metadata (topics live in the store, of which
             the router knows nothing)
    SPLIT    groups of several workers: `parts` says what each is asked
    EVERY    all workers: ListGroups
    MORE     the head is too short to tell
    REFUSED  not served: the connection is closed, as the protocol has no other way to say so

The table of APIs says which kind an API is. Only the header and the routing key are looked at, and
the body is passed on untouched. Requests that name several groups are decoded, which is fine
because they are short.

A plan mostly depends on the first bytes of a request only, and a client sends the same ones again
and again: `locate` says how many these are, so that the next request that begins with them (but for
its correlation id) need not be planned at all.

Why SPREAD is its own kind: requests of one connection that append to a partition must reach the
log in the order in which they were sent. When each goes to the leader of all it names, that is so.
A Produce to partitions of several leaders breaks it, and so a connection that has sent one sends
all its further ones to one worker.
"""

from __future__ import annotations

import struct
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

from msgspec import structs

from broker.placement import leader_of, owner_of
from broker.wire.apis import API_VERSIONS, Api, Routing, lookup
from broker.wire.frame import read_request_header, request_frame
from broker.wire.primitives import MalformedMessage, read_uvarint, skip_tags
from router import routing_fields

OFFSET_FETCH, DESCRIBE_GROUPS, DELETE_GROUPS = 9, 15, 42

# A routing key is within the first bytes: behind a client id, a transactional id and a topic.
LONGEST_HEAD = 128 * 1024
# Requests that name several groups are gathered whole, and no larger than this.
LONGEST_SPLIT = 4 << 20
LONGEST_CACHED_ID = 256

_HEAD = struct.Struct(">hhih")

# Looked at for every request: at hand, not through their class.
_LOCAL, _LEADER, _EVERY = Routing.LOCAL, Routing.LEADER, Routing.EVERY
_COORDINATOR, _COORDINATORS = Routing.COORDINATOR, Routing.COORDINATORS


class Kind(Enum):
    LOCAL = "local"
    OWNER = "owner"
    LEADER = "leader"
    SPREAD = "spread"
    ANY = "any"
    SPLIT = "split"
    EVERY = "every"
    MORE = "more"
    REFUSED = "refused"


class Part(NamedTuple):
    """What one worker is asked of a split request."""

    worker: int
    frame: bytes  # with its length
    request: Any


class Plan(NamedTuple):
    kind: Kind
    worker: int = -1
    is_produce: bool = False
    answered: bool = True  # False: Produce with acks=0 has no reply
    parts: tuple[Part, ...] = ()
    keys: tuple[str, ...] = ()  # the groups of a split request, in its order


Located = tuple[Plan, int]


class Split(NamedTuple):
    """How the groups of a request, and of its response, are found."""

    asked: str  # field of the request: a list of ids, or of structures that have one
    key: str  # the field of such a structure; "": the element is the id
    told: str  # field of the response: a list of structures that have a group_id
    since: int = 0


SPLITS: dict[int, Split] = {
    OFFSET_FETCH: Split("groups", "group_id", "groups", since=8),
    DESCRIBE_GROUPS: Split("groups", "", "groups"),
    DELETE_GROUPS: Split("groups_names", "", "results"),
}

LOCAL = Plan(Kind.LOCAL)
ANY = Plan(Kind.ANY)
ANY_UNANSWERED = Plan(Kind.ANY, answered=False)
EVERY = Plan(Kind.EVERY)
MORE = Plan(Kind.MORE)
REFUSED = Plan(Kind.REFUSED)


class Context:
    """What a plan depends on besides the request."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        every = range(workers)
        self.owner = [Plan(Kind.OWNER, worker) for worker in every]
        self.leader = [Plan(Kind.LEADER, worker) for worker in every]
        self.produce = [Plan(Kind.LEADER, worker, True) for worker in every]
        self.produce_unanswered = [Plan(Kind.LEADER, worker, True, False) for worker in every]


def plan(head: bytes, size: int, context: Context) -> Plan:
    """Where the request goes whose frame has `size` bytes and begins with `head`.

    Raises MalformedMessage when it cannot be a request.
    """
    return locate(head, size, context)[0]


def locate(head: bytes, size: int, context: Context) -> Located:
    """The plan of a request, and on how many of its first bytes it depends.

    Requests that agree in these, but for the correlation id, have the same plan. 0: it may depend
    on anything. Raises MalformedMessage when it cannot be a request.
    """
    try:
        return _locate(head, size, context)
    except (IndexError, struct.error) as fault:
        if len(head) < size and len(head) < LONGEST_HEAD:
            return MORE, 0
        raise MalformedMessage(f"request ends before it says where it goes: {fault}") from None
    except UnicodeDecodeError as fault:
        raise MalformedMessage(f"group id: {fault}") from None


def _locate(head: bytes, size: int, context: Context) -> Located:
    key, version, _, client_id = _HEAD.unpack_from(head)
    api = lookup(key, version)
    if api is None:
        return LOCAL if key == API_VERSIONS else REFUSED, 0
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
        if key == routing_fields.PRODUCE:
            return _produce(head, at, version, flexible, size, context)
        skipped = at + routing_fields.before_topics(key, version)
        by_id = routing_fields.names_topics_by_id(key, version)
        place, end = routing_fields.first_place(head, skipped, flexible, by_id)
        if place is None:
            return ANY, end
        return context.leader[leader_of(place.topic, place.partition, context.workers)], end
    if routing is _COORDINATORS and version >= SPLITS[key].since:
        groups, first = routing_fields.count(head, at, flexible)
        if groups != 1 and context.workers > 1:
            return _split(head, at, size, api, version, context), 0
        if groups < 1:
            return ANY, first
        at = first  # one group, or all of one worker: its first field says where it goes
    if routing is _COORDINATOR or routing is _COORDINATORS:
        # The first field of all of them; a transactional id may be null.
        name, end = routing_fields.string(head, at, flexible)
        return ANY if name is None else context.owner[owner(name, context.workers)], end
    if routing is _LOCAL:
        return LOCAL if len(head) == size else _rest_of(api, size, LONGEST_HEAD), 0
    if routing is _EVERY and context.workers > 1:
        return EVERY if len(head) == size else _rest_of(api, size, LONGEST_HEAD), 0
    return ANY, at


def _rest_of(api: Api, size: int, longest: int) -> Plan:
    """What the router itself reads, or sends twice, must come whole; but it cannot be that long."""
    if size > longest:
        raise MalformedMessage(f"{api.name} of {size} bytes (at most {longest})")
    return MORE


def owner(name: bytes, workers: int) -> int:
    """The worker that coordinates a group or transactional id, as it stands on the wire."""
    if len(name) > LONGEST_CACHED_ID:
        return owner_of(name.decode(), workers)
    return _owner(name, workers)


@lru_cache(maxsize=8192)
def _owner(name: bytes, workers: int) -> int:
    return owner_of(name.decode(), workers)


def _produce(
    head: bytes, at: int, version: int, flexible: bool, size: int, context: Context
) -> Located:
    found = routing_fields.produced(head, at, version, flexible, size)
    answered = found.acks != 0
    if found.first is None:
        return ANY if answered else ANY_UNANSWERED, 0
    workers = context.workers
    leaders = context.produce if answered else context.produce_unanswered
    if workers == 1:
        return leaders[0], found.end
    topic, partition = found.first
    first = leader_of(topic, partition, workers)
    places = found.places
    if places is not None and (
        len(places) == 1 or all(leader_of(*place, workers) == first for place in places)
    ):
        return leaders[first], found.end
    # The same worker for all producers of a topic: they do not meet in the store then.
    return Plan(Kind.SPREAD, leader_of(topic, 0, workers), True, answered), 0


def _split(head: bytes, at: int, size: int, api: Api, version: int, context: Context) -> Plan:
    if len(head) < size:
        return _rest_of(api, size, LONGEST_SPLIT)
    header = read_request_header(head)
    request, _ = api.request_codec(version).decode(head, at)
    split = SPLITS[api.key]
    elements = getattr(request, split.asked)
    by_owner: dict[int, list[Any]] = {}
    keys = []
    for element in elements:
        name = getattr(element, split.key) if split.key else element
        keys.append(name)
        by_owner.setdefault(owner(name.encode(), context.workers), []).append(element)
    if not by_owner:
        return ANY
    if len(by_owner) == 1:
        return context.owner[next(iter(by_owner))]
    parts = []
    for worker, chosen in by_owner.items():
        part = structs.replace(request, **{split.asked: chosen})
        frame = request_frame(api, version, header.correlation_id, header.client_id, part)
        parts.append(Part(worker, frame, part))
    return Plan(Kind.SPLIT, parts=tuple(parts), keys=tuple(keys))
