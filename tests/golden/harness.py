"""Sends the requests of a case and turns the answers into plain values that can be compared."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.batch import CONTROL, read_header, split_batches
from moldau.broker.wire.messages.consumer_group_describe import ConsumerGroupDescribeResponse
from moldau.broker.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from moldau.broker.wire.messages.create_topics import CreateTopicsRequest
from moldau.broker.wire.messages.delete_topics import DeleteTopicsRequest
from moldau.broker.wire.messages.describe_cluster import DescribeClusterRequest
from moldau.broker.wire.messages.describe_transactions import DescribeTransactionsResponse
from moldau.broker.wire.messages.end_txn import EndTxnRequest
from moldau.broker.wire.messages.init_producer_id import InitProducerIdRequest
from moldau.broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.broker.wire.schema import Message
from tests.support.raw.client import RawClient

BROKER_RESOURCES = (4, 8)  # and their loggers
UNKNOWN_TOPIC, SETTLE_S = 3, 30.0
# A new partition has no leader yet, a coordinator loads, a transaction is still ending.
ERROR_NAMES = set(ErrorCode.__members__) - {"NONE"}
NOT_READY = {6, 14, 15, 16, 19, 51}
CLOSED = "the connection is closed"
ANSWERS = Path(__file__).with_name("answers")

# What differs between any two clusters.
NODES = frozenset({"leader_id", "node_id", "controller_id", "leader", "broker_id"})
NODE_LISTS = frozenset({"replica_nodes", "isr_nodes", "replicas"})
# Texts are for people: that there is one where it helps is enough, and none is compared.
DROPPED = frozenset(
    {
        "throttle_time_ms", "cluster_id", "host", "port", "rack", "node_endpoints", "brokers",
        "error_message", "batch_index_error_message", "documentation", "session_id",
    }
)  # fmt: skip

ORDERED_BY = ("name", "topic_name", "transactional_id", "partition_index")
# Times and producer ids: that there is one is compared.
TIMES = frozenset({"transaction_start_time_ms", "last_timestamp", "timestamp"})
RECENT_MS = 1_750_000_000_000  # later than what cases produce with: the time of a marker
PRODUCERS = frozenset({"producer_id"})

Values = dict[str, Any]
# A request, or what makes one of the values seen so far: topic ids by name under "ids", producer
# id and epoch by transactional id under "producers".
Request = Message | Callable[[Values], Message]


class Step(NamedTuple):
    request: Request
    version: int | None = None  # the highest unless given
    is_setup: bool = False  # sent, but its answer is not compared


class Case(NamedTuple):
    steps: Sequence[Step]
    # Of the steps that Moldau answers differently on purpose: by index, how and why.
    differs: Mapping[int, str] = MappingProxyType({})
    # Likewise, where one field differs and the rest of the answer is compared: by index.
    differs_in: Mapping[int, tuple[str, str]] = MappingProxyType({})


def run(case: Case, connect: Callable[[], RawClient]) -> list[Any]:
    """The answers of a case's steps, plain and masked; None for set-up steps."""
    with ExitStack() as stack:
        client = stack.enter_context(connect())
        seen: Values = {
            "ids": {},
            "leaders": {},
            "producers": {},
            "epochs": {},
            "node": _a_node(client),
        }
        answers: list[Any] = []
        for step in case.steps:
            request = step.request if isinstance(step.request, Message) else step.request(seen)
            try:
                answer = _patient_call(client, request, step)
            except ConnectionError:
                answers.append(CLOSED)
                client = stack.enter_context(connect())
                continue
            except TimeoutError:
                answers.append("no answer")
                client = stack.enter_context(connect())
                continue
            assert not _bare_names(answer), f"{request}: a message that is only the error's name"
            _note_ids(answer, seen["ids"])
            _note_producer(request, answer, seen["producers"])
            if step.is_setup and isinstance(request, CreateTopicsRequest | DeleteTopicsRequest):
                seen["leaders"].update(_settle(client, request))
            _rebase_epochs(request, answer, seen["epochs"])
            answers.append(None if step.is_setup else plain(answer))
        return answers


def _patient_call(client: RawClient, request: Message, step: Step) -> Any:
    """A set-up step is repeated while the broker is not ready for it."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        answer = client.call(request, step.version)
        if not step.is_setup or not (NOT_READY & _codes(answer) or _is_ending(answer)):
            return answer
        if time.monotonic() > deadline:
            raise TimeoutError(f"{request} did not succeed")
        time.sleep(0.05)


def _codes(value: Any) -> set[int]:
    """Every error code of an answer."""
    if isinstance(value, list):
        return {code for each in value for code in _codes(each)}
    if not isinstance(value, Message):
        return set()
    found = {value.error_code} if hasattr(value, "error_code") else set()
    for field in value.__struct_fields__:
        found |= _codes(getattr(value, field))
    return found


def _bare_names(value: Any) -> set[str]:
    """Messages of an answer that are only the name of an error code. Clients would show them in
    place of their own sentences."""
    if isinstance(value, list):
        return {name for each in value for name in _bare_names(each)}
    if not isinstance(value, Message):
        return set()
    found = {getattr(value, "error_message", None) or ""} & ERROR_NAMES
    for field in value.__struct_fields__:
        found |= _bare_names(getattr(value, field))
    return found


def _is_ending(answer: Any) -> bool:
    """Are there transactions that wait for their timeout or their markers?"""
    return isinstance(answer, DescribeTransactionsResponse) and any(
        state.transaction_state.startswith(("Ongoing", "Prepare"))
        for state in answer.transaction_states
    )


def _settle(
    client: RawClient, request: CreateTopicsRequest | DeleteTopicsRequest
) -> dict[str, int]:
    """Kafka answers before its brokers know of a topic, or that it is gone: wait until they do.
    Returns who leads the first partition of each."""
    names = [topic.name for topic in request.topics]
    expected = UNKNOWN_TOPIC if isinstance(request, DeleteTopicsRequest) else 0
    deadline = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline:
        wanted = [MetadataRequestTopic(name=name) for name in names]
        found = client.call(MetadataRequest(wanted, False)).topics
        if all(
            topic.error_code == expected and all(p.error_code == 0 for p in topic.partitions)
            for topic in found
        ):
            return {topic.name: topic.partitions[0].leader_id for topic in found if not expected}
        time.sleep(0.02)
    raise TimeoutError(f"topics {names} did not settle")


def _a_node(client: RawClient) -> int:
    node: int = client.call(DescribeClusterRequest()).brokers[0].broker_id
    return node


def _note_ids(answer: Any, ids: dict[str, bytes]) -> None:
    for topic in getattr(answer, "topics", None) or ():
        if getattr(topic, "topic_id", None) and isinstance(topic.name, str):
            ids[topic.name] = topic.topic_id


def _note_producer(request: Message, answer: Any, producers: dict[str, tuple[int, int]]) -> None:
    if (
        isinstance(request, InitProducerIdRequest | EndTxnRequest)
        and request.transactional_id is not None
        and answer.error_code == 0
        and answer.producer_id >= 0
    ):
        producers[request.transactional_id] = (answer.producer_id, answer.producer_epoch)


def _rebase_epochs(request: Message, answer: Any, bases: dict[str, int]) -> None:
    """Kafka 4.3 gives the first member of a group epoch 2, Moldau 1 as KIP-848 has it: epochs are
    compared from there on. Cases add what is noted here to the epochs they send."""
    if isinstance(request, ConsumerGroupHeartbeatRequest):
        if answer.member_epoch > 0:
            base = bases.setdefault(request.group_id, answer.member_epoch - 1)
            answer.member_epoch -= base
    elif isinstance(answer, ConsumerGroupDescribeResponse):
        for group in answer.groups:
            base = bases.get(group.group_id, 0)
            for one, name in (
                (group, "group_epoch"),
                (group, "assignment_epoch"),
                *((member, "member_epoch") for member in group.members),
            ):
                if getattr(one, name) > 0:
                    setattr(one, name, getattr(one, name) - base)


def plain(value: Any, name: str = "") -> Any:
    """A message as JSON would have it, without what differs between any two clusters."""
    if isinstance(value, Message):
        dropped = DROPPED
        if getattr(value, "error_code", 0):
            dropped |= {"log_start_offset"}
        if getattr(value, "resource_type", 0) in BROKER_RESOURCES:
            dropped |= {"resource_name"}
        fields = {key: getattr(value, key) for key in value.__struct_fields__}
        return {key: plain(each, key) for key, each in fields.items() if key not in dropped}
    if name in NODE_LISTS and isinstance(value, list) and all(type(n) is int for n in value):
        return [f"{len(value)} nodes"]
    if isinstance(value, list) and value:
        # Kafka answers in the order of its hash tables; ours is the request's.
        for key in ORDERED_BY:
            if hasattr(value[0], key):
                return [plain(each) for each in sorted(value, key=partial(_rank, key))]
    if name == "subscribed_topic_names":
        return sorted(value)
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if name.endswith("_id") and isinstance(value, bytes):
        return "an id" if any(value) else "no id"
    if name in NODES and isinstance(value, int):
        return "a node" if value >= 0 else "no node"
    if name in TIMES and isinstance(value, int):
        return "a time" if value > RECENT_MS else value
    if name in PRODUCERS and isinstance(value, int):
        return "a producer" if value >= 0 else value
    if name == "records" and value:
        return [_batch(batch) for batch in split_batches(value)]
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    return value


def _rank(key: str, value: Message) -> tuple[bool, Any]:
    found = getattr(value, key)
    return found is not None, found


def _batch(batch: memoryview) -> str:
    header = read_header(batch)
    kind = "marker" if header.attributes & CONTROL else "batch"
    return f"{kind} {header.base_offset}..{header.next_offset - 1}"


def without(field: str, value: Any) -> Any:
    """A plain answer without a field, wherever it is."""
    if isinstance(value, dict):
        return {key: without(field, each) for key, each in value.items() if key != field}
    if isinstance(value, list):
        return [without(field, each) for each in value]
    return value


def stored(name: str) -> Any:
    return json.loads((ANSWERS / f"{name}.json").read_text())


def store(name: str, answers: list[Any]) -> None:
    ANSWERS.mkdir(exist_ok=True)
    encoded = msgspec.json.format(msgspec.json.encode(answers), indent=1)
    (ANSWERS / f"{name}.json").write_bytes(encoded + b"\n")
