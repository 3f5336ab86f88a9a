"""Routes: golden cases, and at random that the fields read agree with the decoded request."""

from __future__ import annotations

import contextlib
import random
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.broker.placement import leader_of, owner_of
from moldau.broker.wire.apis import APIS, Api, ApiKey, Routing
from moldau.broker.wire.frame import read_request_header, request_frame
from moldau.broker.wire.messages.delete_groups import DeleteGroupsRequest
from moldau.broker.wire.messages.describe_groups import DescribeGroupsRequest
from moldau.broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.broker.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from moldau.broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from moldau.broker.wire.primitives import MalformedMessage
from moldau.router import routing
from moldau.router.routing import (
    ANY,
    EVERY,
    LOCAL,
    MORE,
    REFUSED,
    Route,
    RouteKind,
    RoutingTable,
    find_route,
)
from moldau.router.split import SPLIT_FIELDS
from tests.support.raw.wire_messages import SERVED, Case, Maker
from tests.unit.router.routes import (
    TABLE,
    WORKERS,
    framed,
    key_field,
    names_of_owners,
    route_of,
    routed,
)

OF_ONE_GROUP = (
    ApiKey.OFFSET_COMMIT,
    ApiKey.JOIN_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.LEAVE_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.OFFSET_DELETE,
    ApiKey.TXN_OFFSET_COMMIT,
)
REQUESTS = [case for case in SERVED if case.is_request]


def produce(*places: tuple[str, int], acks: int = -1, records: bytes = b"r" * 50) -> ProduceRequest:
    return ProduceRequest(
        acks=acks,
        topic_data=[
            TopicProduceData(name, partition_data=[PartitionProduceData(partition, records)])
            for name, partition in places
        ],
    )


# --- golden cases ---


def kinds(api: Api) -> set[RouteKind]:
    """The routes that requests of an API may have."""
    if api.name == "Produce":
        return {RouteKind.LEADER, RouteKind.SPREAD, RouteKind.ANY}
    return {
        Routing.LOCAL: {RouteKind.LOCAL},
        Routing.LOGIN: {RouteKind.LOGIN},
        Routing.LEADER: {RouteKind.LEADER, RouteKind.ANY},
        Routing.ANY: {RouteKind.ANY},
        Routing.COORDINATOR: {RouteKind.OWNER, RouteKind.ANY},
        Routing.COORDINATORS: {RouteKind.OWNER, RouteKind.SPLIT, RouteKind.ANY},
        Routing.EVERY: {RouteKind.EVERY},
    }[api.routing]


def test_the_router_answers_what_needs_no_worker() -> None:
    assert {api.name for api in APIS.values() if api.routing is Routing.LOCAL} == {
        "ApiVersions",
        "FindCoordinator",
    }


def test_telemetry_is_refused_unless_it_is_on() -> None:
    for key in (ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY):
        frame = framed(APIS[key].request())
        off, on = RoutingTable(WORKERS), RoutingTable(WORKERS, has_telemetry=True)
        assert find_route(frame, len(frame), off) == (Route(RouteKind.REFUSED), 0)
        assert find_route(frame, len(frame), on)[0] == Route(RouteKind.ANY)


def test_groups_go_to_their_owners() -> None:
    for group in ("console-consumer", "žluťoučký kůň", "", "日本語"):
        for key in OF_ONE_GROUP:
            api = APIS[key]
            for version in range(api.lowest, api.highest + 1):
                request: Any = api.request()
                request.group_id = group
                expected = Route(RouteKind.OWNER, owner_of(group, WORKERS))
                assert routed(request, version) == expected, (api.name, version)


def test_produce_goes_to_the_leader() -> None:
    for partition in range(6):
        leader = leader_of("orders", partition, WORKERS)
        assert routed(produce(("orders", partition)), 9) == Route(RouteKind.LEADER, leader, True)
    silent = routed(produce(("orders", 0), acks=0), 9)
    assert silent == Route(RouteKind.LEADER, leader_of("orders", 0, WORKERS), True, has_reply=False)


def test_produce_to_several_leaders_is_spread() -> None:
    # Partitions 0 and 4 have the same leader, 0 and 1 do not.
    together = produce(("orders", 0), ("orders", 4))
    apart = produce(("orders", 0), ("orders", 4), ("orders", 1))
    home = leader_of("orders", 0, WORKERS)
    for version in (3, 9, 12):
        assert routed(together, version) == Route(RouteKind.LEADER, home, True)
        assert routed(apart, version) == Route(RouteKind.SPREAD, home, True)
    # The same home, whichever partition comes first.
    assert routed(produce(("orders", 3), ("orders", 2)), 9).worker == home
    assert routed(apart, 9, workers=1) == Route(RouteKind.LEADER, 0, True)


def test_produce_to_more_partitions_than_are_walked_is_spread() -> None:
    places = [("orders", 4 * number) for number in range(100)]
    assert routed(produce(*places), 9).kind is RouteKind.SPREAD


def test_produce_of_nothing_goes_to_any_worker() -> None:
    assert routed(ProduceRequest(acks=1), 9) == ANY
    assert routed(ProduceRequest(acks=0), 9) == Route(RouteKind.ANY, has_reply=False)


def test_topics_named_by_id_have_a_leader_too() -> None:
    topic_id = bytes(range(16))
    request = FetchRequest(
        topics=[FetchTopic(topic_id=topic_id, partitions=[FetchPartition(partition=3)])]
    )
    assert routed(request, 13) == Route(RouteKind.LEADER, leader_of(topic_id, 3, WORKERS))


@pytest.mark.parametrize("version", range(7))
def test_describe_groups_is_split_by_owner(version: int) -> None:
    names = names_of_owners()
    asked = [names[2], names[0], names[2] + "", names[1]]
    found = routed(DescribeGroupsRequest(asked), version)
    assert found.kind is RouteKind.SPLIT
    assert found.keys == tuple(asked)
    assert {part.worker: part.request.groups for part in found.parts} == {
        2: [names[2], names[2]],
        0: [names[0]],
        1: [names[1]],
    }
    for part in found.parts:  # each is a whole request, with the client's header
        header = read_request_header(part.frame[4:])
        assert (header.correlation_id, header.client_id) == (7, "me")
        codec = APIS[ApiKey.DESCRIBE_GROUPS].request_codec(version)
        assert codec.decode(part.frame, 4 + header.body_at)[0] == part.request


def test_groups_of_one_owner_are_not_split() -> None:
    names = names_of_owners()
    owner = Route(RouteKind.OWNER, 3)
    assert routed(DescribeGroupsRequest([names[3]])) == owner
    assert routed(DeleteGroupsRequest([names[3], names[3]])) == owner
    assert routed(DescribeGroupsRequest([])) == ANY
    groups = [OffsetFetchRequestGroup(names[3])]
    assert routed(OffsetFetchRequest(groups=groups), 8) == owner
    assert routed(OffsetFetchRequest(group_id=names[3]), 7) == owner


def test_offset_fetch_of_several_groups_keeps_its_other_fields() -> None:
    names = names_of_owners()
    groups = [OffsetFetchRequestGroup(names[worker], topics=None) for worker in (1, 0)]
    found = routed(OffsetFetchRequest(groups=groups, require_stable=True), 9)
    assert [part.worker for part in found.parts] == [1, 0]
    assert all(part.request.require_stable for part in found.parts)
    assert found.parts[0].request.groups == [groups[0]]


def test_every_api_that_is_split_declares_its_fields() -> None:
    assert {key for key, api in APIS.items() if api.routing is Routing.COORDINATORS} == set(
        SPLIT_FIELDS
    )


@pytest.mark.parametrize("key", [ApiKey.LIST_GROUPS, ApiKey.LIST_TRANSACTIONS])
def test_lists_ask_every_worker_where_there_are_several(key: ApiKey) -> None:
    request = APIS[key].request()
    assert routed(request) == EVERY
    assert routed(request, workers=1) == ANY


def test_what_is_not_served_is_refused_except_for_api_versions() -> None:
    for key, version in ((99, 0), (-1, 0), (1, 99), (1, -1), (32767, 0)):
        frame = struct.pack(">hhih", key, version, 1, -1)
        assert route_of(frame, len(frame), TABLE) == REFUSED
    frame = struct.pack(">hhih", 18, 99, 1, -1)
    assert route_of(frame, len(frame), TABLE) == LOCAL


def test_frames_that_cannot_be_requests() -> None:
    for frame in (
        b"",
        b"\0\1\0",
        struct.pack(">hhih", 12, 0, 1, 9000) + b"short",  # client id overruns
        struct.pack(">hhihh", 12, 0, 1, -1, 500) + b"short",  # group id overruns
        struct.pack(">hhihh", 12, 0, 1, -1, 2) + b"\xff\xfe",  # not text
    ):
        with pytest.raises(MalformedMessage):
            route_of(frame, len(frame), TABLE)


def test_requests_that_the_router_decodes_have_a_limit() -> None:
    many = DescribeGroupsRequest([f"group-{number}" for number in range(400_000)])
    frame = framed(many)
    assert len(frame) > routing.MAX_SPLIT_BYTES
    with pytest.raises(MalformedMessage):
        route_of(frame[:4096], len(frame), TABLE)


def test_one_group_is_routed_by_the_head_however_long_the_rest_is() -> None:
    name = names_of_owners()[2]
    asked = OffsetFetchRequestTopics("orders", partition_indexes=list(range(1_500_000)))
    frame = framed(OffsetFetchRequest(groups=[OffsetFetchRequestGroup(name, topics=[asked])]), 9)
    assert len(frame) > routing.MAX_SPLIT_BYTES
    assert route_of(frame[:100], len(frame), TABLE) == Route(RouteKind.OWNER, 2)
    # One worker owns them all.
    frame = framed(DescribeGroupsRequest([f"group-{number}" for number in range(400_000)]))
    assert route_of(frame[:100], len(frame), RoutingTable(1)) == Route(RouteKind.OWNER, 0)


def test_a_large_produce_is_routed_by_its_head() -> None:
    frame = framed(produce(("orders", 2), records=bytes(1 << 20)), 9)
    leader = leader_of("orders", 2, WORKERS)
    assert route_of(frame[:2048], len(frame), TABLE) == Route(RouteKind.LEADER, leader, True)
    # Several partitions, of which only the first was received: they may have any leader.
    frame = framed(produce(("orders", 2), ("orders", 6), records=bytes(1 << 20)), 9)
    assert route_of(frame[:2048], len(frame), TABLE).kind is RouteKind.SPREAD


# --- at random ---


def expected_place(request: Any) -> tuple[str | bytes, int] | None:
    topics = getattr(request, "topics", None)
    if topics is None:  # Produce
        with_partitions = [each for each in request.topic_data if each.partition_data]
        topics = with_partitions or request.topic_data
    if not topics:
        return None
    topic = topics[0]
    name = getattr(topic, "name", None) or getattr(topic, "topic", None) or ""
    partitions = next(
        getattr(topic, field)
        for field in ("partitions", "partition_data", "partition_indexes")
        if hasattr(topic, field)
    )
    number = 0
    if partitions:
        first = partitions[0]
        if isinstance(first, int):
            return name, first
        number = next(
            getattr(first, field)
            for field in ("partition", "partition_index", "index")
            if hasattr(first, field)
        )
    return name, number


def is_split(case: Case) -> bool:
    fields = SPLIT_FIELDS.get(case.api.key)
    return fields is not None and case.version >= fields.since_version


def check(case: Case, request: Any, whole: Route) -> None:
    assert whole.kind in kinds(case.api), case
    if case.api.routing is Routing.LEADER:
        place = expected_place(request)
        if place is None:
            assert whole.kind is RouteKind.ANY
        elif case.version < 13 or case.api.key > 1:
            assert whole.kind is not RouteKind.LEADER or whole.worker == leader_of(*place, WORKERS)
        if case.api.key == ApiKey.PRODUCE:
            assert whole.has_reply == (request.acks != 0)
            leaders = {
                leader_of(topic.name if case.version < 13 else topic.topic_id, each.index, WORKERS)
                for topic in request.topic_data
                for each in topic.partition_data
            }
            # Topics without partitions do not count.
            assert (whole.kind is RouteKind.SPREAD) == (len(leaders) > 1)
            if len(leaders) == 1:
                assert whole.worker in leaders
    elif whole.kind is RouteKind.OWNER and not is_split(case):
        assert whole.worker == owner_of(getattr(request, key_field(case.api)), WORKERS)
    elif whole.kind is RouteKind.SPLIT:
        assert len({part.worker for part in whole.parts}) == len(whole.parts) > 1
        for part in whole.parts:
            split = SPLIT_FIELDS[case.api.key]
            for element in getattr(part.request, split.in_request):
                name = getattr(element, split.key) if split.key else element
                assert owner_of(name, WORKERS) == part.worker


@pytest.mark.parametrize("case", REQUESTS, ids=str)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1 << 32), cut=st.floats(0, 1))
def test_the_fields_read_agree_with_the_decoded_request(case: Case, seed: int, cut: float) -> None:
    rng = random.Random(seed)
    request = Maker(rng, case.version, bare=rng.random() < 0.1).make(case.message)
    frame = request_frame(case.api, case.version, 7, "client", request)[4:]
    decoded, _ = case.codec.decode(frame, read_request_header(frame).body_at)
    whole = route_of(frame, len(frame), TABLE)
    check(case, decoded, whole)
    # The route of a part holds when the rest has come, except for a Produce whose partitions were
    # not all received.
    part = route_of(frame[: int(len(frame) * cut)], len(frame), TABLE)
    if part.kind is RouteKind.SPREAD:
        assert whole.is_produce
    elif part != MORE:
        assert part == whole


@pytest.mark.parametrize("case", REQUESTS, ids=str)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1 << 32), noise=st.binary(max_size=60), workers=st.sampled_from((1, 4)))
def test_requests_that_begin_alike_have_the_same_route(
    case: Case, seed: int, noise: bytes, workers: int
) -> None:
    rng = random.Random(seed)
    request = Maker(rng, case.version, bare=rng.random() < 0.1).make(case.message)
    frame = request_frame(case.api, case.version, 7, "client", request)[4:]
    whole, depends = find_route(frame, len(frame), RoutingTable(workers))
    assert depends <= len(frame)
    if whole.kind in (RouteKind.LOCAL, RouteKind.EVERY, RouteKind.SPLIT, RouteKind.SPREAD):
        assert depends == 0
    if depends:
        other = frame[:4] + rng.randbytes(4) + frame[8:depends] + noise
        assert find_route(other, len(other), RoutingTable(workers)) == (whole, depends)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.sampled_from(REQUESTS))
def test_no_bytes_raise_anything_else(noise: bytes, case: Case) -> None:
    frame = struct.pack(">hhih", case.api.key, case.version, 1, -1) + noise
    with contextlib.suppress(MalformedMessage):
        assert isinstance(route_of(frame, len(frame), TABLE), Route)


def test_with_an_authorizer_workers_answer_who_coordinates() -> None:
    table = RoutingTable(WORKERS, has_authorizer=True)
    for key, expected in ((ApiKey.FIND_COORDINATOR, ANY), (ApiKey.API_VERSIONS, LOCAL)):
        api = APIS[key]
        for version in range(api.lowest, api.highest + 1):
            frame = request_frame(api, version, 1, "c", api.request())[4:]
            route, depends = find_route(frame, len(frame), table)
            assert route == expected
            other, _ = find_route(frame, len(frame), TABLE)
            assert other == LOCAL
            assert depends <= len(frame)
