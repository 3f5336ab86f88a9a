"""Members on the wire: what handlers and versions add to join, sync, heartbeat and leave.

Behaviours are numbered as `2_<number>`; most of them are tested on the state machine itself.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.apis import APIS
from moldau.broker.wire.messages.describe_groups import DescribeGroupsRequest
from moldau.broker.wire.messages.heartbeat import HeartbeatRequest
from moldau.broker.wire.messages.join_group import JoinGroupRequest
from moldau.broker.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from moldau.broker.wire.messages.sync_group import SyncGroupRequest
from tests.support.brokers.running import Broker, wait_until
from tests.support.raw.group import NOT_COORDINATOR, RawMember, coordinator_port, form_group

ILLEGAL_GENERATION, INVALID_GROUP_ID, UNKNOWN_MEMBER, REBALANCE_IN_PROGRESS = 22, 24, 25, 27
MEMBER_ID_REQUIRED = 79
JOIN, HEARTBEAT, LEAVE, SYNC = 11, 12, 13, 14


def versions(key: int) -> range:
    return range(APIS[key].lowest, APIS[key].highest + 1)


@pytest.mark.parametrize("version", versions(JOIN))
def test_2_05_every_version_joins(member: RawMember, version: int) -> None:
    answer = member.join(version)

    assert (answer.error_code, answer.generation_id) == (0, 1)
    assert answer.protocol_name == "range"
    assert answer.protocol_type == ("consumer" if version >= 7 else None)
    assert answer.leader == answer.member_id == answer.members[0].member_id
    assert bytes(answer.members[0].metadata) == b"topics"


@pytest.mark.parametrize("version", versions(JOIN))
def test_2_05_no_protocol_is_an_empty_name_below_v7(member: RawMember, version: int) -> None:
    member.session_ms = 1  # refused: no protocol is chosen

    member.send_join(version)

    assert member.receive_join().protocol_name == (None if version >= 7 else "")


def test_2_05_v0_waits_for_others_as_long_as_a_session(moldau: Broker, member: RawMember) -> None:
    member.session_ms, member.rebalance_ms = 6_000, 600_000  # the latter is not in v0
    member.join(0)
    member.sync({member.member_id: b""})
    with RawMember(coordinator_port(moldau, member.group), member.group) as other:
        other.session_ms = other.rebalance_ms = 6_000
        other.join()
        # The first never joined again: it is given up after its session timeout.
        assert other.joined.error_code == 0
        assert [item.member_id for item in other.joined.members] == [other.member_id]


@pytest.mark.parametrize("version", versions(JOIN))
def test_2_06_who_gets_its_id_first(member: RawMember, version: int) -> None:
    member.send_join(version)
    answer = member.receive_join()

    assert answer.error_code == (MEMBER_ID_REQUIRED if version >= 4 else 0)
    client, _, rest = answer.member_id.partition("-")
    assert (client, str(uuid.UUID(rest))) == ("raw", rest)


@pytest.mark.parametrize("version", range(5, 10))
def test_2_06_a_static_member_is_never_asked(member: RawMember, version: int) -> None:
    member.instance = "shop"
    member.send_join(version)
    answer = member.receive_join()

    assert answer.error_code == 0
    assert answer.member_id.startswith("shop-")
    assert answer.members[0].group_instance_id == "shop"


def test_2_07_the_default_delay(start_moldau: Callable[..., Broker], group: str) -> None:
    broker = start_moldau(workers=1)
    with RawMember(broker.port + 1, group) as member:
        began = time.monotonic()
        member.enter()
        first = time.monotonic() - began
        assert first >= 3.0  # group.initial.rebalance.delay.ms
        began = time.monotonic()
        member.enter()
        assert time.monotonic() - began < first  # no delay once the group has members


def test_2_01_no_group_id(member: RawMember) -> None:
    answers = [
        member.call(JoinGroupRequest()),
        member.call(SyncGroupRequest()),
        member.call(HeartbeatRequest()),
        member.call(LeaveGroupRequest()),
    ]

    assert [answer.error_code for answer in answers] == [INVALID_GROUP_ID] * 4


@pytest.mark.parametrize("version", versions(SYNC))
def test_2_14_every_version_syncs(member: RawMember, version: int) -> None:
    member.join()

    answer = member.sync({member.member_id: b"yours"}, version)

    assert (answer.error_code, bytes(answer.assignment)) == (0, b"yours")
    assert answer.protocol_type == ("consumer" if version >= 5 else None)
    assert answer.protocol_name == ("range" if version >= 5 else None)


@pytest.mark.parametrize("version", versions(HEARTBEAT))
def test_2_18_every_version_heartbeats(member: RawMember, version: int) -> None:
    assert member.heartbeat(version) == UNKNOWN_MEMBER
    member.enter()
    assert member.heartbeat(version) == 0
    member.generation += 1
    assert member.heartbeat(version) == ILLEGAL_GENERATION


@pytest.mark.parametrize("version", versions(LEAVE))
def test_2_20_errors_at_the_top_or_at_the_member(member: RawMember, version: int) -> None:
    def leave(name: str) -> tuple[int, list[int]]:
        request = LeaveGroupRequest(member.group, name, [MemberIdentity(name)])
        answer = member.call(request, version)
        return answer.error_code, [item.error_code for item in answer.members]

    unknown = (UNKNOWN_MEMBER, []) if version < 3 else (0, [UNKNOWN_MEMBER])
    assert leave("unknown") == unknown  # an unknown group
    member.enter()
    assert leave("unknown") == unknown  # an unknown member
    assert leave(member.member_id) == (0, [] if version < 3 else [0])
    assert member.heartbeat() == UNKNOWN_MEMBER


def test_2_20_an_administrator_removes_by_instance(member: RawMember) -> None:
    member.instance = "shop"
    member.enter()
    removal = [MemberIdentity("", "shop"), MemberIdentity("", "other")]

    answer = member.call(LeaveGroupRequest(group_id=member.group, members=removal))

    found = [(item.group_instance_id, item.error_code) for item in answer.members]
    assert (answer.error_code, found) == (0, [("shop", 0), ("other", UNKNOWN_MEMBER)])
    assert member.heartbeat() == UNKNOWN_MEMBER


def test_2_04_other_protocol_types_pass_untouched(moldau: Broker, group: str) -> None:
    port = coordinator_port(moldau, group)
    blob = bytes(range(256))
    settings = {"protocol_type": "connect", "protocols": {"sessioned": blob, "compatible": b""}}
    with RawMember(port, group, **settings) as one, RawMember(port, group, **settings) as two:  # type: ignore[arg-type]
        form_group([one, two])

        leader = one if one.joined.leader == one.member_id else two
        assert [bytes(item.metadata) for item in leader.joined.members] == [blob, blob]
        (described,) = one.call(DescribeGroupsRequest([group])).groups
        assert (described.protocol_type, described.protocol_data) == ("connect", "sessioned")
        assert {bytes(item.member_assignment) for item in described.members} == {b"0", b"1"}


@pytest.mark.parametrize("version", versions(HEARTBEAT))
def test_2_18_heartbeats_that_look_alike_are_distinguished(
    moldau: Broker, member: RawMember, group: str, version: int
) -> None:
    """Over one connection, again and again: what was said before must not stand for what is."""
    member.enter()
    stranger = f"{member.member_id[:-1]}?"
    neighbour = f"{group[:-1]}?"  # of the same length, and not in use here or elsewhere

    def beat(generation: int, *, name: str = member.member_id, of: str = group) -> int:
        request = HeartbeatRequest(of, generation, name)
        code: int = member.call(request, version).error_code
        return code

    for _ in range(3):
        assert beat(1) == 0
        assert beat(2) == ILLEGAL_GENERATION
        assert beat(1, name=stranger) == UNKNOWN_MEMBER
        assert beat(1, name=f"{stranger}?") == UNKNOWN_MEMBER
        assert beat(1) == 0
        assert beat(1, of=neighbour) in (UNKNOWN_MEMBER, NOT_COORDINATOR)
        assert beat(1, of="") == INVALID_GROUP_ID
        assert beat(1, of="g" * 300) in (UNKNOWN_MEMBER, NOT_COORDINATOR)
        if version >= 3:
            request = HeartbeatRequest(group, 1, member.member_id, "instance")
            assert member.call(request, version).error_code == UNKNOWN_MEMBER
    # A generation later it is the old one that is refused.
    member.send_join()
    assert member.receive_join().generation_id == 2
    assert (beat(2), beat(1), beat(2)) == (0, ILLEGAL_GENERATION, 0)
    member.sync({})
    assert (beat(2), beat(1), beat(2)) == (0, ILLEGAL_GENERATION, 0)
    member.leave()
    assert beat(2) == UNKNOWN_MEMBER


def test_2_08_a_join_and_a_sync_that_are_sent_again_are_all_answered(
    moldau: Broker, group: str
) -> None:
    """A client gives a request up and sends it again on another connection: the one that is
    replaced is answered, or whatever its connection sends behind it would never be."""
    port = coordinator_port(moldau, group)
    with ExitStack() as stack:
        leader, other = (stack.enter_context(RawMember(port, group)) for _ in range(2))
        form_group([leader, other])
        if leader.joined.leader != leader.member_id:
            leader, other = other, leader
        again = stack.enter_context(RawMember(port, group, member_id=leader.member_id))
        # The leader's Join is parked until the other member has joined as well.
        leader.send_join()
        leader.send(HeartbeatRequest(group, leader.generation, leader.member_id))
        wait_until(lambda: other.heartbeat() == REBALANCE_IN_PROGRESS, 30, "it rebalances")
        again.send_join()
        assert leader.receive_join().error_code == REBALANCE_IN_PROGRESS
        assert leader.joined.member_id == leader.member_id
        assert leader.receive().error_code == REBALANCE_IN_PROGRESS  # what came behind it
        other.send_join()
        assert again.receive_join().error_code == other.receive_join().error_code == 0
        assert again.generation == other.generation == 2

        # The follower's Sync is parked until the leader's assignments are stored.
        twin = stack.enter_context(RawMember(port, group, member_id=other.member_id))
        twin.generation = other.generation
        other.send_sync()
        other.send(HeartbeatRequest(group, other.generation, other.member_id))
        twin.send_sync()
        again.send_sync({leader.member_id: b"one", other.member_id: b"two"})
        assert bytes(again.receive().assignment) == b"one"
        answers = [other.receive(), twin.receive()]
        codes = sorted(answer.error_code for answer in answers)
        assert codes in ([0, 0], [0, REBALANCE_IN_PROGRESS])
        assert {bytes(one.assignment) for one in answers if not one.error_code} == {b"two"}
        assert other.receive().error_code == 0  # the heartbeat behind the Sync


def test_2_10_a_leader_joins_again_at_once_and_everything_behind_it_is_answered(
    member: RawMember,
) -> None:
    """All in flight on one connection: Join, Sync, the leader's second Join, Sync, Heartbeat. The
    answers come in the order of the requests. The second join begins another generation only if the
    assignment of the first is stored by then (2.11): the client learns which it is."""
    member.enter()
    first = member.generation
    name = member.member_id
    for generation in (first + 1, first + 2):
        member.send_join()
        member.generation = generation
        member.send_sync({name: b"part-%d" % generation})
    member.send(HeartbeatRequest(member.group, member.generation, name))

    joined, synced = member.receive_join(), member.receive()
    assert (joined.error_code, joined.generation_id) == (0, first + 1)
    again, last = member.receive_join(), member.receive()
    assert again.error_code == 0
    if again.generation_id == first + 2:
        assert (synced.error_code, last.error_code) == (0, 0)
        assert bytes(last.assignment) == b"part-%d" % (first + 2)
        expected = ErrorCode.NONE
    else:
        assert (synced.error_code, again.generation_id) == (0, first + 1)
        assert bytes(synced.assignment) == b"part-%d" % (first + 1)
        assert last.error_code == ErrorCode.ILLEGAL_GENERATION
        expected = ErrorCode.ILLEGAL_GENERATION
    assert member.receive().error_code == expected
    member.generation = again.generation_id
    assert member.heartbeat() == 0
