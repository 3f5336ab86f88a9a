"""Heartbeats recognised by their bytes: answered as the decoder and the encoder would."""

from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.broker.coordinator.groups.coordinator import GroupCoordinator
from moldau.broker.errors import ErrorCode
from moldau.broker.handlers.heartbeat import HEARTBEAT, HeartbeatRoute
from moldau.broker.wire.frame import (
    LENGTH_SIZE,
    read_request_header,
    read_response,
    request_frame,
)
from moldau.broker.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from moldau.broker.wire.repeats import MAX_PREFIX

NOW_MS = 1_000
VERSIONS = range(HEARTBEAT.lowest, HEARTBEAT.highest + 1)
versions = st.sampled_from(VERSIONS)
names = st.text(min_size=1, max_size=20) | st.integers(120, 300).map(lambda size: "g" * size)


class Coordinator:
    """Records heartbeats; an odd generation is an old one."""

    def __init__(self) -> None:
        self.heartbeats: list[tuple[str, str, str | None, int]] = []
        self.groups = SimpleNamespace(heartbeat=self._heartbeat)

    def now_ms(self) -> int:
        return NOW_MS

    def _heartbeat(
        self, group: str, member: str, instance: str | None, generation: int, now_ms: int
    ) -> int:
        assert now_ms == NOW_MS
        self.heartbeats.append((group, member, instance, generation))
        return ErrorCode.ILLEGAL_GENERATION if generation % 2 else ErrorCode.NONE


def heartbeat(
    version: int, request: HeartbeatRequest, correlation_id: int = 1, client: str | None = "c"
) -> bytearray:
    """A frame, without its length."""
    frame = request_frame(HEARTBEAT, version, correlation_id, client, request)
    return bytearray(frame[LENGTH_SIZE:])


def route_of(coordinator: Coordinator, frame: bytearray) -> HeartbeatRoute:
    header = read_request_header(frame)
    request, _ = HEARTBEAT.request_codec(header.api_version).decode(frame, header.body_at)
    assert isinstance(request, HeartbeatRequest)
    route = HeartbeatRoute(cast("GroupCoordinator", coordinator), header, request)
    assert route.learn(frame)
    return route


def answer(route: HeartbeatRoute, frame: bytearray) -> bytes | None:
    return route.answer(frame) if route.matches(frame, 0, len(frame)) else None


@given(
    versions,
    names,
    st.text(max_size=60),
    st.none() | st.text(max_size=20),
    st.lists(st.integers(-(1 << 31), (1 << 31) - 1), min_size=1, max_size=5),
)
def test_a_repeated_heartbeat_is_answered_as_if_decoded(
    version: int, group: str, member: str, instance: str | None, generations: list[int]
) -> None:
    coordinator = Coordinator()
    first = HeartbeatRequest(group, 1, member, instance)
    route = route_of(coordinator, heartbeat(version, first))
    for number, generation in enumerate(generations):
        frame = heartbeat(version, HeartbeatRequest(group, generation, member, instance), number)
        assert route.header_of(frame) == read_request_header(frame)
        response = answer(route, frame)
        assert response is not None
        assert int.from_bytes(response[:LENGTH_SIZE]) == len(response) - LENGTH_SIZE
        correlation_id, message = read_response(HEARTBEAT, version, response[LENGTH_SIZE:])
        assert correlation_id == number
        code = ErrorCode.ILLEGAL_GENERATION if generation % 2 else ErrorCode.NONE
        assert message == HeartbeatResponse(error_code=code)
        known = instance if version >= 3 else None
        assert coordinator.heartbeats[-1] == (group, member, known, generation)


@pytest.mark.parametrize("version", VERSIONS)
def test_other_requests_are_left_to_the_decoder(version: int) -> None:
    coordinator = Coordinator()
    first = HeartbeatRequest("group", 1, "member")
    route = route_of(coordinator, heartbeat(version, first))
    assert answer(route, heartbeat(version, first)) is not None
    others = [
        heartbeat(version, HeartbeatRequest("grouq", 1, "member")),
        heartbeat(version, HeartbeatRequest("group", 1, "membes")),
        heartbeat(version, HeartbeatRequest("group", 1, "member of another")),
        heartbeat(version, first, client="d"),
        heartbeat(version, first, client=None),
        heartbeat(version, first) + b"\0",
        heartbeat(version, first)[:-1],
        *(heartbeat(other, first) for other in VERSIONS if other != version),
    ]
    before = len(coordinator.heartbeats)
    assert [answer(route, frame) for frame in others] == [None] * len(others)
    assert len(coordinator.heartbeats) == before


def test_tagged_fields_are_not_learned() -> None:
    """Legal, but no client writes them: the generation would not be where it is expected."""
    frame = heartbeat(4, HeartbeatRequest("group", 1, "member"))
    at = read_request_header(frame).body_at - 1
    assert frame[at] == 0
    tagged = frame[:at] + b"\x01\x07\x01\x2a" + frame[at + 1 :]
    header = read_request_header(tagged)
    request, _ = HEARTBEAT.request_codec(4).decode(tagged, header.body_at)
    route = HeartbeatRoute(
        cast("GroupCoordinator", Coordinator()), header, cast("HeartbeatRequest", request)
    )
    assert not route.learn(tagged)


def test_a_long_group_id_is_not_kept() -> None:
    route = route_of(Coordinator(), heartbeat(4, HeartbeatRequest("g" * MAX_PREFIX, 1, "m")))
    assert len(route.prefix) > MAX_PREFIX
