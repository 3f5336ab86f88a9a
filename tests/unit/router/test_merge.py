"""Merging: as one worker that owned all groups would have answered; and what refusals say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import ErrorCode
from broker.placement import owner_of
from broker.wire.apis import APIS, Routing
from broker.wire.frame import LENGTH, read_response, response_frame
from broker.wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsResponse
from broker.wire.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from broker.wire.messages.list_groups import ListedGroup, ListGroupsResponse
from broker.wire.messages.offset_fetch import OffsetFetchResponse, OffsetFetchResponseGroup
from router.gathered_reply import Gather
from router.merge import merge
from router.routing import SPLITS, Part
from router.unavailable import refusal
from tests.support.wire_messages import CASES, Case, random_messages

OFFSET_FETCH, DESCRIBE, LIST, DELETE = APIS[9], APIS[15], APIS[16], APIS[42]
AWAY = ErrorCode.COORDINATOR_NOT_AVAILABLE
groups = st.lists(st.text(max_size=6), max_size=12)


@given(groups, st.integers(1, 5))
def test_split_and_merged_is_in_the_order_of_the_request(names: list[str], workers: int) -> None:
    by_owner: dict[int, list[Any]] = {}
    for name in names:
        told = DescribedGroup(group_id=name, group_state=f"of {owner_of(name, workers)}")
        by_owner.setdefault(owner_of(name, workers), []).append(told)
    answers = [DescribeGroupsResponse(groups=told) for told in by_owner.values()]
    if not answers:
        return
    merged: Any = merge(DESCRIBE, names, answers)
    assert [told.group_id for told in merged.groups] == names
    assert all(
        told.group_state == f"of {owner_of(told.group_id, workers)}" for told in merged.groups
    )


@given(groups, groups)
def test_the_order_in_which_workers_answer_does_not_matter(one: list[str], two: list[str]) -> None:
    others = [f"2-{name}" for name in two]
    first = DeleteGroupsResponse(3, [DeletableGroupResult(name) for name in one])
    second = DeleteGroupsResponse(5, [DeletableGroupResult(name) for name in others])
    keys = [name for pair in zip(one, others, strict=False) for name in pair]
    keys += one[len(others) :] + others[len(one) :]
    merged: Any = merge(DELETE, keys, [first, second])
    assert merged == merge(DELETE, keys, [second, first])
    assert [result.group_id for result in merged.results] == keys
    assert merged.throttle_time_ms == 5


def test_a_group_named_twice_and_told_once_is_told_once() -> None:
    answers = [
        OffsetFetchResponse(groups=[OffsetFetchResponseGroup("a")]),
        OffsetFetchResponse(groups=[OffsetFetchResponseGroup("b", error_code=16)]),
    ]
    merged: Any = merge(OFFSET_FETCH, ["b", "a", "b"], answers)
    assert [(each.group_id, each.error_code) for each in merged.groups] == [("b", 16), ("a", 0)]


def test_list_groups_is_all_of_them_and_tells_a_fault() -> None:
    answers = [
        ListGroupsResponse(groups=[ListedGroup("a"), ListedGroup("b")]),
        ListGroupsResponse(error_code=AWAY),
        ListGroupsResponse(groups=[ListedGroup("c"), ListedGroup("a")]),
    ]
    merged: Any = merge(LIST, (), answers)
    assert [each.group_id for each in merged.groups] == ["a", "b", "c"]
    assert merged.error_code == AWAY
    assert merge(LIST, (), answers[:1]) == answers[0]


def test_gathering_ends_with_the_last_answer_and_speaks_for_those_away() -> None:
    parts = [
        Part(1, b"", DescribeGroupsRequest(["one"])),
        Part(0, b"", DescribeGroupsRequest(["zero", "null"])),
    ]
    gather = Gather(DESCRIBE, 5, 42, ["zero", "one", "null"], parts)
    told = DescribeGroupsResponse(groups=[DescribedGroup(group_id="one", group_state="Stable")])
    gather.deliver(1, b"".join(response_frame(DESCRIBE, 5, 42, told))[4:])
    assert gather.reply is None
    gather.fail(0)
    assert gather.reply is not None
    assert LENGTH.unpack_from(gather.reply)[0] == len(gather.reply) - 4
    correlation_id, message = read_response(DESCRIBE, 5, gather.reply[4:])
    assert correlation_id == 42
    assert isinstance(message, DescribeGroupsResponse)
    assert [(each.group_id, each.error_code, each.group_state) for each in message.groups] == [
        ("zero", AWAY, ""),
        ("one", 0, "Stable"),
        ("null", AWAY, ""),
    ]


OWNED = [
    case
    for case in CASES
    if case.is_request
    and case.api.routing in (Routing.COORDINATOR, Routing.COORDINATORS, Routing.EVERY)
]


def codes(message: Any) -> list[int]:
    """Every error code in a response."""
    found = []
    for field in message.__struct_fields__:
        value = getattr(message, field)
        if field == "error_code":
            found.append(value)
        elif isinstance(value, list):
            found += [code for each in value if hasattr(each, "error_code") for code in codes(each)]
            found += [code for each in value if hasattr(each, "partitions") for code in codes(each)]
    return found


@pytest.mark.parametrize("case", OWNED, ids=str)
def test_every_api_that_has_an_owner_can_be_refused(case: Case) -> None:
    for request in random_messages(case, 10):
        message = refusal(case.api.key, case.version, request)
        assert message is not None
        # It goes over the wire, and what arrives there names no success.
        frame = b"".join(response_frame(case.api, case.version, 1, message))
        _, told = read_response(case.api, case.version, frame[4:])
        split = SPLITS.get(case.api.key)
        if case.api is OFFSET_FETCH and not 2 <= case.version < 8:
            assert isinstance(told, OffsetFetchResponse)
            told.error_code = AWAY  # not on the wire
        assert all(code == AWAY for code in codes(told)), message
        if split is not None and case.version >= split.since:
            asked = [
                getattr(each, split.key) if split.key else each
                for each in getattr(request, split.asked)
            ]
            assert [each.group_id for each in getattr(told, split.told)] == asked


def test_others_have_no_refusal() -> None:
    assert refusal(0, 9, None) is None
