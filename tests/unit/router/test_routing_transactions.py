"""Routes of transactions: to the owner of the transactional id, or of the group."""

from __future__ import annotations

from typing import Any

from moldau.broker.placement import leader_of, owner_of
from moldau.broker.wire.apis import APIS, ApiKey
from moldau.broker.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from moldau.broker.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from moldau.broker.wire.messages.describe_transactions import DescribeTransactionsRequest
from moldau.broker.wire.messages.init_producer_id import InitProducerIdRequest
from moldau.broker.wire.messages.txn_offset_commit import TxnOffsetCommitRequest
from moldau.router.routing import ANY, MORE, Route, RouteKind
from tests.unit.router.routes import (
    OF_ONE_TRANSACTION,
    WORKERS,
    framed,
    key_field,
    names_of_owners,
    route_of,
    routed,
)


def test_a_transactional_id_has_an_owner_and_null_goes_to_any_worker() -> None:
    with_id = InitProducerIdRequest("payments")
    assert routed(with_id, 0) == Route(RouteKind.OWNER, owner_of("payments", WORKERS))
    assert routed(with_id, 4) == Route(RouteKind.OWNER, owner_of("payments", WORKERS))
    for version in (0, 4):
        assert routed(InitProducerIdRequest(None), version) == ANY


def test_requests_of_a_transaction_go_to_the_owner_of_its_id() -> None:
    owner = Route(RouteKind.OWNER, owner_of("payments", WORKERS))
    for key in OF_ONE_TRANSACTION:
        api = APIS[key]
        for version in range(api.lowest, api.highest + 1):
            request: Any = api.request()
            if key == ApiKey.ADD_PARTITIONS_TO_TXN and version >= 4:
                request.transactions = [AddPartitionsToTxnTransaction("payments", verify_only=True)]
            else:
                setattr(request, key_field(api), "payments")
            assert routed(request, version) == owner, (api.name, version)


def test_offsets_of_a_transaction_go_to_the_owner_of_the_group() -> None:
    names = names_of_owners()
    for worker, group in names.items():
        for version in range(6):
            for transactional_id in names.values():
                request = TxnOffsetCommitRequest(transactional_id, group, producer_id=worker)
                assert routed(request, version) == Route(RouteKind.OWNER, worker)
    # The group id may arrive later than the transactional id.
    frame = framed(TxnOffsetCommitRequest("t" * 300, names[1]))
    assert route_of(frame[:320], len(frame)) == MORE


def test_add_partitions_of_several_transactions_is_split_by_owner() -> None:
    names = names_of_owners()
    asked = [
        AddPartitionsToTxnTransaction(
            names[worker], 7, 1, topics=[AddPartitionsToTxnTopic("a", [2])]
        )
        for worker in (2, 0, 2)
    ]
    for version in (4, 5):
        found = routed(AddPartitionsToTxnRequest(transactions=asked), version)
        assert found.kind is RouteKind.SPLIT
        assert found.keys == (names[2], names[0], names[2])
        assert {part.worker: part.request.transactions for part in found.parts} == {
            2: [asked[0], asked[2]],
            0: [asked[1]],
        }


def test_describe_transactions_is_split_by_owner() -> None:
    names = names_of_owners()
    found = routed(DescribeTransactionsRequest([names[3], names[1]]))
    assert [(part.worker, part.request.transactional_ids) for part in found.parts] == [
        (3, [names[3]]),
        (1, [names[1]]),
    ]
    assert routed(DescribeTransactionsRequest([names[1]])) == Route(RouteKind.OWNER, 1)
    assert routed(DescribeTransactionsRequest([])) == ANY


def test_producers_are_described_by_the_leader_of_the_first_partition() -> None:
    for partition in range(6):
        request = DescribeProducersRequest([TopicRequest("orders", [partition, 0])])
        leader = leader_of("orders", partition, WORKERS)
        assert routed(request) == Route(RouteKind.LEADER, leader)
