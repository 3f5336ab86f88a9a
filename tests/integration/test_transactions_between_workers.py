"""What workers ask each other about transactions, over their unix sockets."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.placement import owner_of, slot_of
from moldau.broker.private.table import PREAMBLE
from moldau.broker.security.identity import worker_identity
from moldau.broker.wire.apis import APIS, ApiKey
from moldau.broker.wire.frame import read_response, request_frame
from moldau.broker.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from moldau.broker.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from moldau.broker.wire.messages.describe_transactions import DescribeTransactionsRequest
from moldau.broker.wire.messages.end_txn import EndTxnRequest
from moldau.broker.wire.messages.init_producer_id import InitProducerIdRequest
from moldau.broker.wire.messages.list_transactions import ListTransactionsRequest
from moldau.broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.broker.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from moldau.broker.wire.schema import NO_UUID, Message
from moldau.ops.serve.runtime import worker_socket
from tests.support.brokers.running import Broker, running_broker
from tests.support.raw.calls import create_topic
from tests.support.raw.client import RawClient

WORKERS = 2
ABORTABLE = ErrorCode.TRANSACTION_ABORTABLE
GROUPS = "__consumer_offsets"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with running_broker(workers=WORKERS) as started:
        with RawClient(started.port) as client:
            create_topic(client, "t", partitions=4)
            create_topic(client, "native", {"moldau.storage": "native"})
        yield started


class Peer:
    """A connection as another worker's."""

    def __init__(self, broker: Broker, worker: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(30)
        self._socket.connect(str(worker_socket(broker.directory / "run", broker.port, worker)))
        self._socket.sendall(PREAMBLE.request(worker_identity(1 - worker)))
        self.store_id = (broker.data_dir / "history").read_bytes()

    def call(self, api: ApiKey, version: int, request: Message) -> Any:
        self._socket.sendall(request_frame(APIS[api], version, 5, "test", request))
        (size,) = struct.unpack(">i", self._read(4))
        _, response = read_response(APIS[api], version, self._read(size))
        return response

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += self._socket.recv(size - len(data))
        return data

    def add(
        self, *wanted: AddPartitionsToTxnTransaction, version: int = 5
    ) -> list[list[tuple[int, int]]]:
        """Error and number of each partition, by transaction."""
        request = AddPartitionsToTxnRequest(list(wanted), store_id=self.store_id)
        response = self.call(ApiKey.ADD_PARTITIONS_TO_TXN, version, request)
        assert [one.transactional_id for one in response.results_by_transaction] == [
            one.transactional_id for one in wanted
        ]
        return [
            [
                (each.partition_error_code, each.transaction_number)
                for topic in one.topic_results
                for each in topic.results_by_partition
            ]
            for one in response.results_by_transaction
        ]

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def peers(broker: Broker) -> Iterator[list[Peer]]:
    made = [Peer(broker, worker) for worker in range(WORKERS)]
    yield made
    for peer in made:
        peer.close()


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker.port) as made:
        yield made


def topic_id(client: RawClient, name: str) -> bytes:
    found: bytes = (
        client.call(MetadataRequest([MetadataRequestTopic(name=name)])).topics[0].topic_id
    )
    return found


def begun(client: RawClient, name: str) -> tuple[int, int]:
    answer = client.call(InitProducerIdRequest(name, 60_000))
    assert answer.error_code == 0
    return answer.producer_id, answer.producer_epoch


def wanted(
    name: str,
    producer: tuple[int, int],
    *topics: tuple[str, bytes, list[int]],
    verify_only: bool = False,
) -> AddPartitionsToTxnTransaction:
    return AddPartitionsToTxnTransaction(
        name,
        *producer,
        verify_only,
        [AddPartitionsToTxnTopic(topic, numbers, id_) for topic, id_, numbers in topics],
    )


def places(client: RawClient, name: str) -> dict[str, list[int]]:
    (state,) = client.call(DescribeTransactionsRequest([name])).transaction_states
    return {topic.topic: topic.partitions for topic in state.topics}


def test_places_join_and_the_answer_has_the_number(client: RawClient, peers: list[Peer]) -> None:
    name = "joined"
    owner = peers[owner_of(name, WORKERS)]
    producer = begun(client, name)
    here = topic_id(client, "t")
    for number in (1, 2):
        first = wanted(name, producer, (GROUPS, NO_UUID, [7]), ("t", here, [2, 0]))
        # One that has to end first is not waited for: other producers wait behind the link.
        while (answer := owner.add(first)) == [[(ErrorCode.CONCURRENT_TRANSACTIONS, 0)] * 3]:
            assert number == 2
        assert answer == [[(0, number)] * 3]
        assert owner.add(
            wanted(name, producer, ("t", here, [0, 1]), verify_only=True),
            wanted(name, (1, 0), ("t", here, [0])),
        ) == [
            [(0, number), (ABORTABLE, number)],
            [(ErrorCode.INVALID_PRODUCER_ID_MAPPING, 0)],
        ]
        assert places(client, name) == {GROUPS: [7], "t": [0, 2]}
        assert client.call(EndTxnRequest(name, *producer, True), 4).error_code == 0


def test_a_worker_that_sees_another_store_id_gets_no_answer(
    client: RawClient, peers: list[Peer]
) -> None:
    """One of the two has not noticed yet that the store lost its tail."""
    name = "id-of-the-store"
    producer = begun(client, name)
    owner = peers[owner_of(name, WORKERS)]
    owner.store_id = b"another"
    answer = owner.add(wanted(name, producer, ("t", topic_id(client, "t"), [0])))
    assert answer == [[(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 0)]]


def test_what_is_open_is_told_to_a_worker_with_the_same_store_id_only(
    client: RawClient, peers: list[Peer]
) -> None:
    """Otherwise it would abort a transaction that this worker is about to end again."""
    name = "open-under-which-store-id"
    producer = begun(client, name)
    owner = peers[owner_of(name, WORKERS)]
    owner.add(wanted(name, producer, ("t", topic_id(client, "t"), [0])))
    for store_id, error, names in (
        (b"another", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, []),
        (owner.store_id, ErrorCode.NONE, [name]),
    ):
        request = ListTransactionsRequest(["Ongoing"], [producer[0]], store_id=store_id)
        answer = owner.call(ApiKey.LIST_TRANSACTIONS, 2, request)
        assert answer.error_code == error
        assert [one.transactional_id for one in answer.transaction_states] == names
    assert client.call(EndTxnRequest(name, *producer, False), 4).error_code == 0


def test_what_another_worker_is_refused(client: RawClient, peers: list[Peer]) -> None:
    name = "elsewhere"
    owner = owner_of(name, WORKERS)
    producer = begun(client, name)
    other = peers[1 - owner].add(wanted(name, producer, ("t", NO_UUID, [0])))
    assert other == [[(ErrorCode.NOT_COORDINATOR, 0)]]
    fenced = peers[owner].add(wanted(name, (producer[0], 9), ("t", NO_UUID, [0])))
    assert fenced == [[(ErrorCode.PRODUCER_FENCED, 0)]]


def test_7_6_clients_add_all_or_nothing(client: RawClient) -> None:
    name = "all or nothing"
    producer = begun(client, name)

    def add(version: int, *topics: tuple[str, list[int]]) -> dict[tuple[str, int], int]:
        request = AddPartitionsToTxnRequest(
            [],
            name,
            *producer,
            [AddPartitionsToTxnTopic(topic, numbers) for topic, numbers in topics],
        )
        response = client.call(request, version)
        return {
            (topic.name, each.partition_index): each.partition_error_code
            for topic in response.results_by_topic_v3_and_below
            for each in topic.results_by_partition
        }

    untried = ErrorCode.OPERATION_NOT_ATTEMPTED
    for version in range(4):
        assert add(version, ("t", [0, 9]), ("absent", [0]), ("native", [0]), (GROUPS, [1])) == {
            ("t", 0): untried,
            ("t", 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("absent", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("native", 0): ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            (GROUPS, 1): ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        }
    assert places(client, name) == {}
    assert add(3, ("t", [0, 1])) == {("t", 0): 0, ("t", 1): 0}
    assert places(client, name) == {"t": [0, 1]}
    assert client.call(AddOffsetsToTxnRequest(name, *producer, "group"), 3).error_code == 0
    assert places(client, name) == {"t": [0, 1], GROUPS: [slot_of("group")]}


def test_several_transactions_of_clients(client: RawClient) -> None:
    """v4 and v5, through the router."""
    names = [f"many-{number}" for number in range(6)]
    producers = {name: begun(client, name) for name in names}
    for version, missing in ((4, ABORTABLE), (5, ABORTABLE)):
        request = AddPartitionsToTxnRequest(
            [
                wanted(name, producers[name], ("t", NO_UUID, [0, 1]), verify_only=True)
                for name in names
            ]
        )
        response = client.call(request, version)
        assert {one.transactional_id for one in response.results_by_transaction} == set(names)
        for one in response.results_by_transaction:
            (topic,) = one.topic_results
            assert [each.partition_error_code for each in topic.results_by_partition] == [
                missing
            ] * 2
            assert {each.transaction_number for each in topic.results_by_partition} == {0}


def test_markers_name_topics_by_id(client: RawClient, peers: list[Peer]) -> None:
    """7.18: a topic of the same name that came after it does not get them."""
    here = topic_id(client, "t")
    marker = WritableTxnMarker(
        77,
        0,
        False,
        [
            WritableTxnMarkerTopic("t", [0, 3, 4], here),
            WritableTxnMarkerTopic("t", [0], b"x" * 16),
            WritableTxnMarkerTopic("absent", [0]),
            WritableTxnMarkerTopic("native", [0]),
            WritableTxnMarkerTopic(GROUPS, [0, 1]),
        ],
        3,
        2,
    )
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for worker, peer in enumerate(peers):
        request = WriteTxnMarkersRequest([marker], peer.store_id)
        response = peer.call(ApiKey.WRITE_TXN_MARKERS, 2, request)
        (result,) = response.markers
        groups = [ErrorCode.NONE, ErrorCode.NOT_COORDINATOR]
        assert [[each.error_code for each in topic.partitions] for topic in result.topics] == [
            [0, 0, unknown],
            [unknown],
            [unknown],
            [0],
            groups[::-1] if worker else groups,
        ]


def test_markers_of_a_worker_that_sees_another_store_id_are_refused(
    client: RawClient, peers: list[Peer]
) -> None:
    """A marker written again after the store lost it would be reported as there already."""
    marker = WritableTxnMarker(78, 0, True, [WritableTxnMarkerTopic("t", [0, 1])], 3, 2)
    for peer in peers:
        request = WriteTxnMarkersRequest([marker], b"another")
        (result,) = peer.call(ApiKey.WRITE_TXN_MARKERS, 2, request).markers
        errors = [each.error_code for topic in result.topics for each in topic.partitions]
        assert errors == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 2
