"""The replies of the router's own."""

from __future__ import annotations

import struct
from typing import Any, cast

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.placement import owner_of
from moldau.broker.settings.processes import Endpoint
from moldau.broker.wire.apis import APIS, ApiKey
from moldau.broker.wire.frame import read_response, request_frame
from moldau.broker.wire.messages.api_versions import ApiVersionsRequest
from moldau.broker.wire.messages.find_coordinator import FindCoordinatorRequest
from moldau.broker.wire.schema import Message
from moldau.router.local_answers import MAX_CACHED, LocalAnswers

WORKERS = [Endpoint(index, "broker.example", 9093 + index) for index in range(3)]
ROUTER = [Endpoint(0, "broker.example", 9092)]


def ask(request: Message, key: int, version: int, brokers: list[Endpoint] = WORKERS) -> Any:
    frame = request_frame(APIS[key], version, 9, None, request)[4:]
    answers = LocalAnswers(brokers, [True] * len(WORKERS))
    reply = answers.reply(frame)
    # The same request of another client: the same reply except for the correlation id.
    assert answers.reply(frame[:4] + b"\1\2\3\4" + frame[8:]) == (
        reply[:4] + b"\1\2\3\4" + reply[8:]
    )
    assert struct.unpack_from(">i", reply)[0] == len(reply) - 4
    correlation_id, message = read_response(APIS[key], version, reply[4:])
    assert correlation_id == 9
    return message


@pytest.mark.parametrize("version", range(5))
def test_api_versions_names_every_api(version: int) -> None:
    response = ask(ApiVersionsRequest("client", "1.0"), ApiKey.API_VERSIONS, version)
    assert {(each.api_key, each.max_version) for each in response.api_keys} == {
        (api.key, api.highest) for api in APIS.values() if not api.is_telemetry
    }


@pytest.mark.parametrize("version", range(5))
def test_telemetry_is_named_where_it_is_on(version: int) -> None:
    frame = request_frame(
        APIS[ApiKey.API_VERSIONS], version, 9, None, ApiVersionsRequest("client", "1.0")
    )[4:]
    reply = LocalAnswers(WORKERS, [True] * 3, has_telemetry=True).reply(frame)
    _, response = read_response(APIS[ApiKey.API_VERSIONS], version, reply[4:])
    assert {each.api_key for each in cast("Any", response).api_keys} == set(APIS)


@pytest.mark.parametrize("version", [3, 4])
def test_7_29_the_levels_in_force_are_the_only_ones_offered(version: int) -> None:
    response = ask(ApiVersionsRequest("client", "1.0"), ApiKey.API_VERSIONS, version)
    levels = {"group.version": 1, "metadata.version": 30, "transaction.version": 2}
    offered = [
        (each.name, each.min_version, each.max_version) for each in response.supported_features
    ]
    assert sorted(offered) == [(name, level, level) for name, level in levels.items()]
    finalized = {each.name: each.max_version_level for each in response.finalized_features}
    assert finalized == levels


def test_an_unknown_version_of_api_versions_gets_the_known_ones() -> None:
    frame = struct.pack(">hhih", ApiKey.API_VERSIONS, 99, 9, -1)
    reply = LocalAnswers(WORKERS, [True] * 3).reply(frame)
    _, response = read_response(APIS[ApiKey.API_VERSIONS], 0, reply[4:])
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION  # type: ignore[attr-defined]


@pytest.mark.parametrize("version", range(7))
def test_a_coordinator_is_the_owner_or_the_router(version: int) -> None:
    for name in ("orders", "payments", "žluťoučký"):
        for brokers, node in ((WORKERS, WORKERS[owner_of(name, 3)]), (ROUTER, ROUTER[0])):
            request = FindCoordinatorRequest(name, 0, [name, name])
            response = ask(request, 10, version, brokers)
            for found in response.coordinators if version >= 4 else [response]:
                assert (found.error_code, found.node_id) == (0, node.node_id)
                assert (found.host, found.port) == (node.host, node.port)
            if version >= 4:
                assert [found.key for found in response.coordinators] == [name, name]


@pytest.mark.parametrize("version", range(7))
@pytest.mark.parametrize("brokers", [WORKERS, ROUTER])
def test_2_28_a_worker_that_is_down_coordinates_nothing(
    version: int, brokers: list[Endpoint]
) -> None:
    is_up = [True, True, True]
    answers = LocalAnswers(brokers, is_up)
    request = FindCoordinatorRequest("orders", 0, ["orders", "shipments"])
    frame = request_frame(APIS[ApiKey.FIND_COORDINATOR], version, 9, None, request)[4:]

    def found() -> list[tuple[int, int]]:
        _, response = read_response(
            APIS[ApiKey.FIND_COORDINATOR], version, answers.reply(frame)[4:]
        )
        each: Any = response.coordinators if version >= 4 else [response]  # type: ignore[attr-defined]
        return [(one.error_code, one.node_id) for one in each]

    all_up = found()
    assert {code for code, _ in all_up} == {0}
    is_up[owner_of("orders", 3)] = False
    assert owner_of("shipments", 3) != owner_of("orders", 3)
    assert found() == [(ErrorCode.COORDINATOR_NOT_AVAILABLE, -1), *all_up[1:]]
    is_up[owner_of("orders", 3)] = True
    assert found() == all_up


def test_there_are_coordinators_of_groups_and_transactions_only() -> None:
    request = FindCoordinatorRequest(key_type=2, coordinator_keys=["share"])
    (found,) = ask(request, 10, 6).coordinators
    assert (found.error_code, found.node_id) == (ErrorCode.INVALID_REQUEST, -1)


def test_simple_consumers_may_commit_under_no_name() -> None:
    """Listed groups have to be found, or tools that look each one up fail for all of them."""
    assert ask(FindCoordinatorRequest(""), 10, 3).error_code == 0
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=[""])
    (found,) = ask(request, 10, 6).coordinators
    assert (found.key, found.error_code, found.port > 0) == ("", 0, True)


def test_the_cache_of_replies_has_a_limit() -> None:
    answers = LocalAnswers(WORKERS, [True] * len(WORKERS))
    for number in range(MAX_CACHED + 10):
        request = FindCoordinatorRequest(f"group-{number}")
        frame = request_frame(APIS[ApiKey.FIND_COORDINATOR], 3, number, None, request)[4:]
        _, response = read_response(APIS[ApiKey.FIND_COORDINATOR], 3, answers.reply(frame)[4:])
        assert response.node_id == owner_of(f"group-{number}", 3)  # type: ignore[attr-defined]
        assert len(answers) <= MAX_CACHED
    long = request_frame(
        APIS[ApiKey.FIND_COORDINATOR], 3, 1, "x" * 5000, FindCoordinatorRequest("group")
    )[4:]
    before = len(answers)
    answers.reply(long)
    assert len(answers) == before
