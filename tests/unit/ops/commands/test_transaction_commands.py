"""The pure parts of `moldau transactions`, and which requests it sends to a scripted broker."""

from __future__ import annotations

import io
from collections import deque
from typing import Any

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from moldau.broker.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
)
from moldau.broker.wire.messages.describe_transactions import TransactionState as Described
from moldau.broker.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from moldau.broker.wire.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from moldau.broker.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from moldau.broker.wire.messages.list_transactions import TransactionState as ListedState
from moldau.broker.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from moldau.broker.wire.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopic,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from moldau.broker.wire.schema import Message
from moldau.ops.cli import main
from moldau.ops.client import ClientError, Cluster, Node, TopicPartition, names
from moldau.ops.command_line import parse_duration
from moldau.ops.commands import transactions_abort
from moldau.ops.commands.transactions_describe import time_text
from moldau.ops.operations import transactions
from moldau.ops.operations.hanging_transactions import find_hanging, find_open, write_abort_marker
from moldau.ops.operations.transactions import list_with_times

PLACE = TopicPartition("t", 0)
PRODUCER = 7


class Scripted(Cluster):
    """Two brokers and topic t of one partition, led by broker 2.

    `coordinated` is what broker 1 coordinates; `opened` the producers of t-0 each time it is asked.
    """

    def __init__(self) -> None:
        super().__init__([("127.0.0.1", 1)])
        self.coordinated: dict[str, Described] = {}
        self.opened: deque[list[ProducerState]] = deque([[]])
        self.init_codes: deque[int] = deque([0])
        self.sent: list[tuple[Message, int | None, int | None]] = []

    def call(self, request: Message, node: Node | None = None, version: int | None = None) -> Any:
        self.sent.append((request, None if node is None else node.node_id, version))
        match request:
            case MetadataRequest():
                partition = MetadataResponsePartition(0, 0, 2)
                return MetadataResponse(
                    brokers=[MetadataResponseBroker(n, "127.0.0.1", n) for n in (1, 2)],
                    topics=[MetadataResponseTopic(0, "t", partitions=[partition])],
                )
            case FindCoordinatorRequest():
                assert request.key_type == 1
                (key,) = request.coordinator_keys
                found = Coordinator(key, 1, "127.0.0.1", 1)
                return FindCoordinatorResponse(coordinators=[found])
            case DescribeProducersRequest():
                producers = self.opened[0] if len(self.opened) == 1 else self.opened.popleft()
                answer = PartitionResponse(0, 0, None, producers)
                return DescribeProducersResponse(topics=[TopicResponse("t", [answer])])
            case ListTransactionsRequest():
                wanted = request.producer_id_filters
                listed = [
                    ListedState(one.transactional_id, one.producer_id, one.transaction_state)
                    for one in self.coordinated.values()
                    if not wanted or one.producer_id in wanted
                ]
                return ListTransactionsResponse(
                    transaction_states=listed if node is not None and node.node_id == 1 else []
                )
            case DescribeTransactionsRequest():
                unknown = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
                return DescribeTransactionsResponse(
                    transaction_states=[
                        self.coordinated.get(name, Described(unknown, name))
                        for name in request.transactional_ids
                    ]
                )
            case InitProducerIdRequest():
                return InitProducerIdResponse(0, self.init_codes.popleft(), PRODUCER, 3)
            case WriteTxnMarkersRequest():
                done = WritableTxnMarkerPartitionResult(0, 0)
                topic = WritableTxnMarkerTopicResult("t", [done])
                return WriteTxnMarkersResponse([WritableTxnMarkerResult(PRODUCER, [topic])])
        raise AssertionError(request)

    def requests(self, kind: type[Message]) -> list[Any]:
        return [request for request, _, _ in self.sent if isinstance(request, kind)]


def transaction(
    name: str, state: str = "Ongoing", *, producer: int = PRODUCER, partition: int = 0
) -> dict[str, Described]:
    topics = [TopicData("t", [partition])] if state in ("Ongoing", "PrepareCommit") else []
    return {name: Described(0, name, state, 60_000, 1000, producer, 1, topics)}


def is_open(start: int, *, producer: int = PRODUCER, coordinator_epoch: int = 5) -> ProducerState:
    return ProducerState(producer, 1, 9, 2000, coordinator_epoch, start)


@pytest.fixture
def cluster() -> Scripted:
    return Scripted()


# --- which hang ---


@pytest.mark.parametrize(
    ("known", "hangs"),
    [
        ({}, True),
        (transaction("x"), False),
        (transaction("x", "PrepareCommit"), False),
        (transaction("x", "CompleteCommit"), True),
        (transaction("x", "Empty"), True),
        (transaction("x", partition=1), True),
        (transaction("x", producer=8), True),
    ],
    ids=["unknown", "ongoing", "ending", "ended", "empty", "another partition", "another producer"],
)
def test_what_its_coordinator_does_not_know_hangs(
    cluster: Scripted, known: dict[str, Described], hangs: bool
) -> None:
    cluster.coordinated = known
    cluster.opened = deque([[is_open(40)]])
    assert [one.start_offset for one in find_hanging(cluster, [PLACE])] == ([40] if hangs else [])


def test_what_ended_while_coordinators_were_asked_does_not_hang(cluster: Scripted) -> None:
    cluster.opened = deque([[is_open(40)], [is_open(-1)]])
    assert find_hanging(cluster, [PLACE]) == []
    cluster.opened = deque([[is_open(40)], [is_open(50)]])  # its next one
    assert find_hanging(cluster, [PLACE]) == []


def test_with_nothing_open_no_coordinator_is_asked(cluster: Scripted) -> None:
    cluster.opened = deque([[is_open(-1)]])
    assert find_hanging(cluster, [PLACE]) == []
    assert cluster.requests(ListTransactionsRequest) == []


# --- ending one ---


def test_only_what_hangs_is_ended_in_a_partition(cluster: Scripted) -> None:
    cluster.opened = deque([[is_open(40), is_open(50, producer=8)]])
    with pytest.raises(ClientError, match=r"offset 41 on; open ones begin at 40, 50"):
        find_open(cluster, PLACE, 41)
    cluster.coordinated = transaction("billing")
    with pytest.raises(ClientError, match=r"does not hang.*abort billing`"):
        find_open(cluster, PLACE, 40)
    assert find_open(cluster, PLACE, 50).producer_id == 8
    cluster.opened = deque([[]])
    with pytest.raises(ClientError, match="none is open there"):
        find_open(cluster, PLACE, 40)


@pytest.mark.parametrize(("coordinator_epoch", "sent"), [(5, 5), (-1, 0)])
def test_the_marker_is_an_administrators(
    cluster: Scripted, coordinator_epoch: int, sent: int
) -> None:
    cluster.opened = deque([[is_open(40, coordinator_epoch=coordinator_epoch)]])
    write_abort_marker(cluster, find_open(cluster, PLACE, 40))
    request, node, version = cluster.sent[-1]
    assert isinstance(request, WriteTxnMarkersRequest)
    (marker,) = request.markers
    assert (node, version) == (2, 1)  # the leader; without a transaction version
    assert (marker.producer_id, marker.producer_epoch) == (PRODUCER, 1)
    assert (marker.coordinator_epoch, marker.transaction_result) == (sent, False)
    assert marker.topics == [WritableTxnMarkerTopic("t", [0])]


# --- by id ---


@pytest.fixture
def abort(
    cluster: Scripted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    """`abort(*words, typed="")` -> exit code and standard error, against the scripted broker."""
    monkeypatch.setattr("moldau.ops.command_line.open_cluster", lambda arguments: cluster)

    def run(*words: str, typed: str = "") -> tuple[int, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        return main(["transactions", "abort", *words]), capsys.readouterr().err

    return run


def test_a_new_producer_with_the_same_timeout_aborts_it(cluster: Scripted, abort: Any) -> None:
    cluster.coordinated = transaction("x")
    cluster.init_codes = deque([ErrorCode.CONCURRENT_TRANSACTIONS, 0])
    assert abort("x", "--yes") == (0, "")
    first, second = cluster.requests(InitProducerIdRequest)
    assert first == second == InitProducerIdRequest("x", 60_000)


def test_markers_that_cannot_be_written_end_the_patience(
    cluster: Scripted, abort: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "ABORT_PATIENCE_S", 0.0)
    cluster.coordinated = transaction("x")
    cluster.init_codes = deque([ErrorCode.CONCURRENT_TRANSACTIONS])
    code, error = abort("x", "--yes")
    assert code == 1
    assert "still ending (CONCURRENT_TRANSACTIONS); `moldau transactions describe`" in error


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ("CompleteCommit", "no transaction is open"),
        ("Empty", "no transaction is open"),
        ("PrepareCommit", "decided and ends by itself"),
    ],
)
def test_what_is_not_open_is_not_aborted(
    cluster: Scripted, abort: Any, state: str, message: str
) -> None:
    cluster.coordinated = transaction("x", state) | transaction("y", producer=8)
    code, error = abort("x", "y", "z", "--yes")
    assert code == 1
    assert f"transactional id x: it is {state}, " in error
    assert message in error
    assert "transactional id z: there is no such transactional id" in error
    assert [one.transactional_id for one in cluster.requests(InitProducerIdRequest)] == ["y"]


def test_it_asks_first(cluster: Scripted, abort: Any) -> None:
    cluster.coordinated = transaction("x")
    for typed, message in (("n\n", "not confirmed"), ("", "add --yes")):
        code, error = abort("x", typed=typed)
        assert code == 1
        assert "Abort the transaction of x, and fence its producer? [y/N]" in error
        assert message in error
    assert cluster.requests(InitProducerIdRequest) == []
    assert abort("x", typed="y\n")[0] == 0


def test_a_transaction_that_began_meanwhile_is_left_alone(
    cluster: Scripted, abort: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.coordinated = transaction("x")

    def confirm(question: str) -> None:
        began = cluster.coordinated["x"].transaction_start_time_ms + 1
        cluster.coordinated = transaction("x")
        cluster.coordinated["x"].transaction_start_time_ms = began

    monkeypatch.setattr(transactions_abort, "confirm", confirm)
    code, error = abort("x")
    assert code == 1
    assert "has ended meanwhile" in error
    assert cluster.requests(InitProducerIdRequest) == []


# --- showing, and wrong usage ---


def test_ids_of_all_brokers_are_listed_with_the_age_of_open_ones(cluster: Scripted) -> None:
    cluster.coordinated = transaction("b") | transaction("a", "CompleteAbort")
    first, second = list_with_times(cluster, ListTransactionsRequest())
    assert (first.transactional_id, first.started_ms) == ("a", None)
    assert (second.transactional_id, second.started_ms) == ("b", 1000)
    assert (second.running_ms or 0) > 1000
    assert second.coordinator == names.Coordinator(1, "127.0.0.1:1")
    assert [node for request, node, _ in cluster.sent if isinstance(
        request, ListTransactionsRequest
    )] == [1, 2]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("0s", 0), ("500ms", 500), ("90s", 90_000), ("15min", 900_000), ("15m", 900_000),
     ("2 h", 7_200_000), ("1d", 86_400_000)],
)  # fmt: skip
def test_durations(text: str, milliseconds: int) -> None:
    assert parse_duration(text) == milliseconds


@pytest.mark.parametrize("text", ["", "5", "-5s", "1.5h", "5 parsecs", "9999999999d", "٣s"])
def test_not_durations(text: str) -> None:
    with pytest.raises(ValueError, match="want a duration"):
        parse_duration(text)


def test_times_are_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert time_text(1_767_225_600_999) == "2026-01-01 00:00:00Z"


@pytest.mark.parametrize("action", [None, "list", "describe", "find-hanging", "abort"])
def test_help_teaches_with_examples(action: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["transactions", *([action] if action else []), "--help"])
    assert left.value.code == 0
    out = capsys.readouterr().out
    assert f"examples:\n  moldau transactions {action or 'list'}" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["list", "--state", "Sleeping"], "choose from Empty, Ongoing"),
        (["list", "--producer-id", "-1"], "want a producer id"),
        (["list", "--longer-than", "long"], "want a duration"),
        (["find-hanging", "--partition", "0"], "add --topic"),
        (["find-hanging", "--topic", "t", "--partition", "x"], "number of a partition"),
        (["abort"], "either transactional ids, or all of"),
        (["abort", "--topic", "t", "--partition", "0"], "either transactional ids, or all of"),
        (["abort", "x", "--topic", "t"], "either transactional ids, or all of"),
        (["abort", "--start-offset", "-1"], "offsets begin at 0"),
    ],
)
def test_wrong_usage(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["transactions", *words])
    assert left.value.code == 2
    assert message in capsys.readouterr().err
