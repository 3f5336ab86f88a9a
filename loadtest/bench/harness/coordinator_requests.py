"""Requests of the coordinator path, encoded once and sent again and again: see replay.py.

heartbeat  of an unknown member: the group's owner looks it up, without the store
commit     of one partition, by a consumer that is not a member: one write to the store
find       FindCoordinator: answered by every worker and by the router itself
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from itertools import count
from typing import Any

from moldau.broker.errors import ErrorCode
from moldau.broker.placement import owner_of
from moldau.broker.wire.messages.find_coordinator import FindCoordinatorRequest
from moldau.broker.wire.messages.heartbeat import HeartbeatRequest
from moldau.broker.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from moldau.broker.wire.schema import Message
from moldau.loadtest.bench.harness.client import Address, Client, check_error, new_name
from moldau.loadtest.bench.harness.replay import replaying, run_load
from moldau.loadtest.bench.harness.requests import encode
from moldau.loadtest.bench.harness.target import Target
from moldau.loadtest.bench.harness.turns import Load
from moldau.ops.client import GROUP

# Kafka creates the topic of offsets when it is first asked for a coordinator, and loads it then.
COORDINATOR_NOT_READY = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
READY_TIMEOUT_S = 120.0

Addressed = tuple[bytes, Address]  # a frame, and where to send it


# --- the requests ---


def new_groups(workers: int, how_many: int) -> list[str]:
    """New group ids, spread evenly over the workers."""
    prefix = new_name()
    names: list[str] = []
    for number in count():
        if len(names) == how_many:
            break
        name = f"{prefix}-{number}"
        if owner_of(name, workers) == len(names) % workers:
            names.append(name)
    return names


def _unknown_member(group: str) -> HeartbeatRequest:
    return HeartbeatRequest(group, 1, f"{group}-{secrets.token_hex(16)}")


def heartbeat(group: str) -> bytes:
    return encode(_unknown_member(group))


def find(group: str) -> bytes:
    return encode(FindCoordinatorRequest(group))


def _commit_request(group: str, topic: str) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(0, 1)
    return OffsetCommitRequest(
        group, topics=[OffsetCommitRequestTopic(topic, partitions=[partition])]
    )


def commit(group: str, topic: str) -> bytes:
    return encode(_commit_request(group, topic))


def load_of(requests: Sequence[Addressed], in_flight: int, seconds: float) -> Load:
    """A connection for each request, which is sent again and again."""
    connections = [replaying([frame], in_flight, address) for frame, address in requests]
    return lambda: run_load(connections, seconds)


# --- coordinators ---


def check_commit(client: Client, group: str, topic: str) -> None:
    """Commits have to succeed: the replies of a run are not read."""
    answer = _when_ready(client, _commit_request(group, topic), _partition_error)
    check_error("OffsetCommit", _partition_error(answer))


def coordinators(target: Target, names: Sequence[str], key_type: int = GROUP) -> dict[str, Address]:
    """Group or transactional id -> its coordinator, found by asking: other brokers place them by
    other rules."""
    found = {}
    with Client(target.address) as client:
        for name in names:
            answer = _when_ready(client, FindCoordinatorRequest(name, key_type))
            check_error("FindCoordinator", answer.error_code)
            found[name] = (answer.host, answer.port)
    return found


def await_coordinator(client: Client, group: str) -> None:
    """Wait until it looks members up: before that it refuses every heartbeat."""
    _when_ready(client, _unknown_member(group))


def _top_level_error(answer: Any) -> int:
    return int(answer.error_code)


def _partition_error(answer: Any) -> int:
    return int(answer.topics[0].partitions[0].error_code)


def _when_ready(client: Client, request: Message, error_of: Any = _top_level_error) -> Any:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while True:
        answer = client.ask(request)
        error = error_of(answer)
        if error not in COORDINATOR_NOT_READY:
            return answer
        if time.monotonic() > deadline:
            check_error(type(request).__name__, error)
        time.sleep(0.05)
