"""Requests of the coordinator path, made once and sent again and again: see replay.py.

heartbeat  of a member nobody knows: the group's owner looks for it; the store is not asked
commit     of one partition, by a consumer that is no member: one write to the store
find       who coordinates a group: answered by whoever is asked, the router included
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from itertools import count

from broker.wire.apis import APIS, Api
from broker.wire.frame import request_frame
from broker.wire.messages.find_coordinator import FindCoordinatorRequest
from broker.wire.messages.heartbeat import HeartbeatRequest
from broker.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from broker.wire.schema import Message
from loadtest.client import Client, RequestFailed
from loadtest.producing import Load
from loadtest.replay import Replayer, run_load
from router.slots import owner_of

COMMIT, FIND_COORDINATOR, HEARTBEAT = APIS[8], APIS[10], APIS[12]
COMMIT_VERSION, FIND_VERSION, HEARTBEAT_VERSION = 8, 3, 4

Address = tuple[str, int]
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


def heartbeat(group: str) -> bytes:
    request = HeartbeatRequest(group, 1, f"{group}-{secrets.token_hex(16)}")
    return _frame(HEARTBEAT, HEARTBEAT_VERSION, request)


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
    answer = client.call(COMMIT, COMMIT_VERSION, commit_request(group, topic))
    error = answer.topics[0].partitions[0].error_code
    if error:
        raise RequestFailed(f"OffsetCommit: error {error}")


def workers_of(client: Client) -> list[Address]:
    """The addresses clients are told, by worker."""
    nodes = sorted(client.metadata().brokers, key=lambda node: node.node_id)
    return [(node.host, node.port) for node in nodes]


def load_of(connections: Sequence[Connection], in_flight: int, seconds: float) -> Load:
    made: list[tuple[Callable[[], Replayer], Address]] = [
        (_replayer(frame, in_flight), address) for frame, address in connections
    ]
    return lambda: run_load(made, seconds)


def _replayer(frame: bytes, in_flight: int) -> Callable[[], Replayer]:
    return lambda: Replayer([frame], in_flight)
