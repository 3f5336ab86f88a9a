"""Membership of a consumer group, for one topic: join, heartbeats, commits, leave.

The classic protocol with the `range` strategy, so that it shares a group with every other client.
The caller decides when to send heartbeats and how requests reach the coordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.consumer_protocol import assigned_partitions
from moldau.broker.wire.messages.heartbeat import HeartbeatRequest
from moldau.broker.wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from moldau.broker.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from moldau.broker.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from moldau.broker.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from moldau.broker.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from moldau.broker.wire.schema import Message
from moldau.ops.client.consumer_protocol import assignment, subscription
from moldau.ops.client.errors import refusal
from moldau.ops.client.retry import Backoff

PROTOCOL, PROTOCOL_TYPE = "range", "consumer"
SESSION_MS = 15_000
REBALANCE_MS = 25_000  # below the time-out of connections
HEARTBEAT_S = 3.0
PATIENCE_S = 60.0
NO_MEMBER = ""
REBALANCING = frozenset({ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION})
WAIT = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


# A request to the group's coordinator, and how to read the error code of its response.
Ask = Callable[[Message, Callable[[Any], int]], Any]


class RejoinNeeded(Exception):
    """The group is rebalancing, or has removed this member: `join` again."""


class Membership:
    def __init__(
        self,
        ask: Ask,
        group: str,
        topic: str,
        partitions: int,
        *,
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
    ) -> None:
        self._ask = ask
        self._group = group
        self._session_ms, self._rebalance_ms = session_ms, rebalance_ms
        self._topic = topic
        self._partitions = partitions
        self._member_id = NO_MEMBER
        self._generation = -1

    # --- membership ---

    def join(self) -> list[int]:
        """Become a member; returns the partitions that are its own. Raises ClientError."""
        while True:
            joined = self._join()
            assignments: dict[str, bytes] = {}
            if joined.leader == self._member_id:
                members = sorted(member.member_id for member in joined.members)
                assignments = {
                    member: assignment(self._topic, range(*self._share(number, len(members))))
                    for number, member in enumerate(members)
                }
            try:
                return self._sync(assignments)
            except RejoinNeeded:
                continue

    def _join(self) -> JoinGroupResponse:
        backoff = Backoff(PATIENCE_S)
        while True:
            request = JoinGroupRequest(
                group_id=self._group,
                session_timeout_ms=self._session_ms,
                rebalance_timeout_ms=self._rebalance_ms,
                member_id=self._member_id,
                protocol_type=PROTOCOL_TYPE,
                protocols=[JoinGroupRequestProtocol(PROTOCOL, subscription(self._topic))],
            )
            answer: JoinGroupResponse = self._ask(request, _top_code)
            code = answer.error_code
            if code == 0:
                self._member_id, self._generation = answer.member_id, answer.generation_id
                return answer
            if code == ErrorCode.MEMBER_ID_REQUIRED:
                self._member_id = answer.member_id
            elif code == ErrorCode.UNKNOWN_MEMBER_ID:
                self._member_id = NO_MEMBER
            elif code not in REBALANCING and not (code in WAIT and backoff.wait()):
                raise refusal(f"group {self._group}", code)

    def _share(self, number: int, members: int) -> tuple[int, int]:
        """The range of partitions for the member with this number."""
        each, extra = divmod(self._partitions, members)
        first = number * each + min(number, extra)
        return first, first + each + (number < extra)

    def _sync(self, assignments: Mapping[str, bytes]) -> list[int]:
        request = SyncGroupRequest(
            group_id=self._group,
            generation_id=self._generation,
            member_id=self._member_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=PROTOCOL,
            assignments=[SyncGroupRequestAssignment(*item) for item in assignments.items()],
        )
        answer = self._ask(request, _top_code)
        self._check(answer.error_code)
        assigned = assigned_partitions(bytes(answer.assignment)) or []
        return [partition for topic, partition in assigned if topic == self._topic]

    def heartbeat(self, ask: Ask | None = None) -> None:
        """`ask`: over a connection of its own, where a parked JoinGroup would delay heartbeats.
        Raises RejoinNeeded, ClientError."""
        request = HeartbeatRequest(self._group, self._generation, self._member_id)
        self._check((ask or self._ask)(request, _top_code).error_code)

    def leave(self) -> None:
        if self._member_id != NO_MEMBER:
            request = LeaveGroupRequest(self._group, members=[MemberIdentity(self._member_id)])
            self._ask(request, _top_code)
            self._member_id = NO_MEMBER

    # --- offsets ---

    def committed(self, partitions: list[int]) -> dict[int, int]:
        """The committed offsets; partitions without one are left out. Raises ClientError."""
        wanted = OffsetFetchRequestTopics(self._topic, partition_indexes=partitions)
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(self._group, topics=[wanted])])
        response = self._ask(request, _fetch_code)
        if code := _fetch_code(response):
            raise refusal(f"group {self._group}", code)
        (answer,) = response.groups
        return {
            each.partition_index: each.committed_offset
            for topic in answer.topics
            for each in topic.partitions
            if each.committed_offset >= 0
        }

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Raises RejoinNeeded, ClientError."""
        if not offsets:
            return
        positions = [OffsetCommitRequestPartition(*item) for item in offsets.items()]
        request = OffsetCommitRequest(
            self._group,
            self._generation,
            self._member_id,
            topics=[OffsetCommitRequestTopic(self._topic, partitions=positions)],
        )
        self._check(_first_code(self._ask(request, _first_code)))

    def _check(self, code: int) -> None:
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self._member_id = NO_MEMBER
            raise RejoinNeeded
        if code in REBALANCING or code in WAIT:
            raise RejoinNeeded
        if code:
            raise refusal(f"group {self._group}", code)


_top_code: Callable[[Any], int] = attrgetter("error_code")


def _fetch_code(answer: Any) -> int:
    (group,) = answer.groups
    return int(group.error_code) or _first_code(group)


def _first_code(answer: Any) -> int:
    """Partitions fail one by one, or all for the same reason."""
    return next((e.error_code for t in answer.topics for e in t.partitions if e.error_code), 0)
