"""Merged responses, and responses in place of workers that are down."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from moldau.broker.errors import ErrorCode
from moldau.broker.placement import owner_of
from moldau.broker.wire.apis import APIS, ApiKey, Routing
from moldau.broker.wire.frame import LENGTH, read_response, response_frame
from moldau.broker.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from moldau.broker.wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsResponse
from moldau.broker.wire.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from moldau.broker.wire.messages.describe_transactions import (
    DescribeTransactionsResponse,
    TransactionState,
)
from moldau.broker.wire.messages.list_groups import ListedGroup, ListGroupsResponse
from moldau.broker.wire.messages.list_transactions import ListTransactionsResponse
from moldau.broker.wire.messages.list_transactions import TransactionState as ListedTransaction
from moldau.broker.wire.messages.offset_fetch import OffsetFetchResponse, OffsetFetchResponseGroup
from moldau.broker.wire.schema import Message
from moldau.router.split import SPLIT_FIELDS, GatheredReply, RequestPart, merge
from moldau.router.unavailable import unavailable_response
from tests.support.raw.wire_messages import SERVED, Case, for_each, random_messages

OFFSET_FETCH, DESCRIBE, LIST, DELETE = (
    APIS[ApiKey.OFFSET_FETCH],
    APIS[ApiKey.DESCRIBE_GROUPS],
    APIS[ApiKey.LIST_GROUPS],
    APIS[ApiKey.DELETE_GROUPS],
)
ADD_PARTITIONS = APIS[ApiKey.ADD_PARTITIONS_TO_TXN]
LIST_TRANSACTIONS = APIS[ApiKey.LIST_TRANSACTIONS]
UNAVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE
groups = st.lists(st.text(max_size=6), max_size=12)


@given(groups, st.integers(1, 5))
def test_split_and_merged_is_in_the_order_of_the_request(names: list[str], workers: int) -> None:
    by_owner: dict[int, list[Any]] = {}
    for name in names:
        described = DescribedGroup(group_id=name, group_state=f"of {owner_of(name, workers)}")
        by_owner.setdefault(owner_of(name, workers), []).append(described)
    answers = [DescribeGroupsResponse(groups=described) for described in by_owner.values()]
    if not answers:
        return
    merged: Any = merge(DESCRIBE, names, answers)
    assert [each.group_id for each in merged.groups] == names
    assert all(
        each.group_state == f"of {owner_of(each.group_id, workers)}" for each in merged.groups
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


def test_a_group_asked_for_twice_and_returned_once_is_returned_once() -> None:
    answers = [
        OffsetFetchResponse(groups=[OffsetFetchResponseGroup("a")]),
        OffsetFetchResponse(groups=[OffsetFetchResponseGroup("b", error_code=16)]),
    ]
    merged: Any = merge(OFFSET_FETCH, ["b", "a", "b"], answers)
    assert [(each.group_id, each.error_code) for each in merged.groups] == [("b", 16), ("a", 0)]


def test_list_groups_is_all_of_them_and_the_error_of_one_worker() -> None:
    answers = [
        ListGroupsResponse(groups=[ListedGroup("a"), ListedGroup("b")]),
        ListGroupsResponse(error_code=UNAVAILABLE),
        ListGroupsResponse(groups=[ListedGroup("c"), ListedGroup("a")]),
    ]
    merged: Any = merge(LIST, (), answers)
    assert [each.group_id for each in merged.groups] == ["a", "b", "c"]
    assert merged.error_code == UNAVAILABLE
    assert merge(LIST, (), answers[:1]) == answers[0]


def test_list_transactions_is_all_of_them_and_the_unknown_filters_once() -> None:
    ongoing, empty = ListedTransaction("a", 1, "Ongoing"), ListedTransaction("b", 2, "Empty")
    answers = [
        ListTransactionsResponse(unknown_state_filters=["Odd", "Even"], transaction_states=[empty]),
        ListTransactionsResponse(error_code=UNAVAILABLE),
        ListTransactionsResponse(
            unknown_state_filters=["Odd", "Even"], transaction_states=[ongoing, empty]
        ),
    ]
    merged = merge(LIST_TRANSACTIONS, (), answers)
    assert merged == ListTransactionsResponse(
        error_code=UNAVAILABLE,
        unknown_state_filters=["Odd", "Even"],
        transaction_states=[empty, ongoing],
    )


def test_described_transactions_are_in_the_order_of_the_request() -> None:
    answers = [
        DescribeTransactionsResponse(2, [TransactionState(0, "b"), TransactionState(105, "a")]),
        DescribeTransactionsResponse(0, [TransactionState(UNAVAILABLE, "c")]),
    ]
    merged: Any = merge(APIS[ApiKey.DESCRIBE_TRANSACTIONS], ["a", "c", "b"], answers)
    assert merged.throttle_time_ms == 2
    assert [(each.transactional_id, each.error_code) for each in merged.transaction_states] == [
        ("a", 105),
        ("c", UNAVAILABLE),
        ("b", 0),
    ]


def test_partitions_are_added_to_the_transactions_whose_owner_is_up() -> None:
    first, second = (
        AddPartitionsToTxnTransaction(name, topics=[AddPartitionsToTxnTopic("orders", [3, 1])])
        for name in ("first", "second")
    )
    parts = [
        RequestPart(1, b"", AddPartitionsToTxnRequest(transactions=[second])),
        RequestPart(0, b"", AddPartitionsToTxnRequest(transactions=[first])),
    ]
    gathered = GatheredReply(ADD_PARTITIONS, 5, 42, ["first", "second"], parts)
    gathered.fail(0)
    added = AddPartitionsToTxnResult(
        "second",
        [
            AddPartitionsToTxnTopicResult(
                "orders",
                [AddPartitionsToTxnPartitionResult(3, 0, 9), AddPartitionsToTxnPartitionResult(1)],
            )
        ],
    )
    response = AddPartitionsToTxnResponse(results_by_transaction=[added])
    gathered.deliver(1, b"".join(response_frame(ADD_PARTITIONS, 5, 42, response))[4:])
    assert gathered.frame is not None
    _, message = read_response(ADD_PARTITIONS, 5, gathered.frame[4:])
    assert isinstance(message, AddPartitionsToTxnResponse)
    assert message.error_code == 0
    down, up = message.results_by_transaction
    assert up == added
    assert down.transactional_id == "first"
    assert [
        (each.partition_index, each.partition_error_code)
        for each in down.topic_results[0].results_by_partition
    ] == [(3, UNAVAILABLE), (1, UNAVAILABLE)]


def test_a_gathered_reply_is_complete_when_all_replied_or_are_down() -> None:
    parts = [
        RequestPart(1, b"", DescribeGroupsRequest(["one"])),
        RequestPart(0, b"", DescribeGroupsRequest(["zero", "null"])),
    ]
    gathered = GatheredReply(DESCRIBE, 5, 42, ["zero", "one", "null"], parts)
    response = DescribeGroupsResponse(groups=[DescribedGroup(group_id="one", group_state="Stable")])
    gathered.deliver(1, b"".join(response_frame(DESCRIBE, 5, 42, response))[4:])
    assert gathered.frame is None
    gathered.fail(0)
    assert gathered.frame is not None
    assert LENGTH.unpack_from(gathered.frame)[0] == len(gathered.frame) - 4
    correlation_id, message = read_response(DESCRIBE, 5, gathered.frame[4:])
    assert correlation_id == 42
    assert isinstance(message, DescribeGroupsResponse)
    assert [(each.group_id, each.error_code, each.group_state) for each in message.groups] == [
        ("zero", UNAVAILABLE, ""),
        ("one", 0, "Stable"),
        ("null", UNAVAILABLE, ""),
    ]


OWNED = [
    case
    for case in SERVED
    if case.is_request
    and case.api.routing in (Routing.COORDINATOR, Routing.COORDINATORS, Routing.EVERY)
]


def codes(message: Any) -> list[int]:
    """Every error code in a response."""
    found = []
    for field in message.__struct_fields__:
        value = getattr(message, field)
        if field in ("error_code", "partition_error_code"):
            found.append(value)
        elif isinstance(value, list):
            found += [code for each in value if isinstance(each, Message) for code in codes(each)]
    return found


@for_each(OWNED)
def test_every_api_that_has_an_owner_has_an_unavailable_response(case: Case) -> None:
    for request in random_messages(case, 10):
        message = unavailable_response(case.api, case.version, request)
        assert message is not None
        # Encoded and decoded again, it contains no success.
        frame = b"".join(response_frame(case.api, case.version, 1, message))
        _, response = read_response(case.api, case.version, frame[4:])
        split = SPLIT_FIELDS.get(case.api.key)
        if case.api is OFFSET_FETCH and not 2 <= case.version < 8:
            assert isinstance(response, OffsetFetchResponse)
            response.error_code = UNAVAILABLE  # not on the wire
        if case.api is ADD_PARTITIONS:
            assert isinstance(response, AddPartitionsToTxnResponse)
            assert response.error_code == 0  # it would be that of the other parts too
            response.error_code = UNAVAILABLE
        assert all(code == UNAVAILABLE for code in codes(response)), message
        if split is not None and case.version >= split.since_version:
            asked = [
                getattr(each, split.key) if split.key else each
                for each in getattr(request, split.in_request)
            ]
            answered = getattr(response, split.in_response)
            assert [getattr(each, split.response_key) for each in answered] == asked


def test_other_apis_have_no_unavailable_response() -> None:
    assert unavailable_response(APIS[ApiKey.PRODUCE], 9, None) is None
