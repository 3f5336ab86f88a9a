"""Requests of the coordinator path, made once and sent again and again: see replay.py.

heartbeat  of a member nobody knows: the group's owner looks for it; the store is not asked
commit     of one partition, by a consumer that is no member: one write to the store
find       who coordinates a group: answered by whoever is asked, the router included
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from broker.errors import ErrorCode
from broker.placement import owner_of
from broker.wire.apis import APIS, Api, ApiKey
from broker.wire.frame import request_frame
from broker.wire.messages.find_coordinator import FindCoordinatorRequest
from broker.wire.messages.heartbeat import HeartbeatRequest
from broker.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from broker.wire.schema import Message
from loadtest.bench.harness.client import Client, RequestFailed
from loadtest.bench.harness.replay import Replayer, run_load
from loadtest.bench.harness.target import Target
from loadtest.bench.produce import Load
from ops.client import Address

COMMIT, FIND_COORDINATOR, HEARTBEAT = (
    APIS[ApiKey.OFFSET_COMMIT],
    APIS[ApiKey.FIND_COORDINATOR],
    APIS[ApiKey.HEARTBEAT],
)
COMMIT_VERSION, FIND_VERSION, HEARTBEAT_VERSION = 8, 3, 4

# The group's coordinator has not taken it over yet: Kafka makes the topic of offsets when it is
# first asked for a coordinator, and loads it.
NOT_YET = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
PATIENCE_S = 120.0

Connection = tuple[bytes, Address]  # what is sent again and again, and where


def groups_of(workers: int, how_many: int) -> list[str]:
    """New group ids, as many for each worker."""
    prefix = f"bench-{secrets.token_hex(4)}"
    names: list[str] = []
    for number in count():
        if len(names) == how_many:
            break
        name = f"{prefix}-{number}"
        if owner_of(name, workers) == len(names) % workers:
            names.append(name)
    return names


def _frame(api: Api, version: int, request: Message) -> bytes:
    return bytes(request_frame(api, version, 1, "bench", request))


def _unknown_member(group: str) -> HeartbeatRequest:
    return HeartbeatRequest(group, 1, f"{group}-{secrets.token_hex(16)}")


def heartbeat(group: str) -> bytes:
    return _frame(HEARTBEAT, HEARTBEAT_VERSION, _unknown_member(group))


def find(group: str) -> bytes:
    return _frame(FIND_COORDINATOR, FIND_VERSION, FindCoordinatorRequest(group))


def commit_request(group: str, topic: str) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(0, 1)
    return OffsetCommitRequest(
        group, topics=[OffsetCommitRequestTopic(topic, partitions=[partition])]
    )


def commit(group: str, topic: str) -> bytes:
    return _frame(COMMIT, COMMIT_VERSION, commit_request(group, topic))


def check_commit(client: Client, group: str, topic: str) -> None:
    """That commits succeed: nobody looks at them afterwards. Raises RequestFailed."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        answer = client.call(commit_request(group, topic), COMMIT_VERSION)
        error = answer.topics[0].partitions[0].error_code
        if not error:
            return
        if error not in NOT_YET or time.monotonic() > deadline:
            raise RequestFailed(f"OffsetCommit: error {error}")
        time.sleep(0.05)


def workers_of(client: Client) -> list[Address]:
    """The addresses clients are told, by worker."""
    nodes = sorted(client.metadata().brokers, key=lambda node: node.node_id)
    return [(node.host, node.port) for node in nodes]


def coordinators(target: Target, groups: Sequence[str]) -> dict[str, Address]:
    """Where groups are at home, by asking: other brokers have other rules."""
    homes = {}
    with Client(target.host, target.port) as client:
        for group in groups:
            request = FindCoordinatorRequest(group)
            answer = _until_it_serves(client, FIND_COORDINATOR, FIND_VERSION, request)
            if answer.error_code:
                raise RequestFailed(f"FindCoordinator: error {answer.error_code}")
            homes[group] = (answer.host, answer.port)
    return homes


def await_coordinator(client: Client, group: str) -> None:
    """Until it looks for a group's members: before that it refuses heartbeats unseen."""
    _until_it_serves(client, HEARTBEAT, HEARTBEAT_VERSION, _unknown_member(group))


def _until_it_serves(client: Client, api: Api, version: int, request: Message) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        answer = client.call(request, version)
        if answer.error_code not in NOT_YET:
            return answer
        if time.monotonic() > deadline:
            raise RequestFailed(f"{api.name}: error {answer.error_code}")
        time.sleep(0.1)


def load_of(connections: Sequence[Connection], in_flight: int, seconds: float) -> Load:
    made: list[tuple[Callable[[], Replayer], Address]] = [
        (_replayer(frame, in_flight), address) for frame, address in connections
    ]
    return lambda: run_load(made, seconds)


def _replayer(frame: bytes, in_flight: int) -> Callable[[], Replayer]:
    return lambda: Replayer([frame], in_flight)
