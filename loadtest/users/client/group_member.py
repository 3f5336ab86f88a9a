"""A member of a consumer group: joins, assigns partitions if it leads, fetches, commits, leaves.

Heartbeats use a connection of their own, as in every client: a parked JoinGroup would delay them.
The user decides when to send one.
"""

from __future__ import annotations

from collections.abc import Sequence

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
from moldau.broker.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from moldau.broker.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from moldau.loadtest.users.client.connection import RequestRefused, top_level_error
from moldau.loadtest.users.client.session import Session, partition_error, records_of
from moldau.loadtest.users.client.stamped import PartitionCheck
from moldau.ops.client import EARLIEST
from moldau.ops.client.consumer_protocol import assignment, subscription

PROTOCOL, PROTOCOL_TYPE = "range", "consumer"
REBALANCE_MS = 60_000
NO_MEMBER = ""
# Not failures: how a member learns that it has to join again.
REBALANCING = frozenset({ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION})
REMOVED = frozenset({ErrorCode.UNKNOWN_MEMBER_ID})

# What this process knows to be committed: group, topic, partition -> offset. Offsets only grow
# here: a member continues at the committed offset, and only the partition's owner may commit.
_committed: dict[tuple[str, str, int], int] = {}


class RejoinNeeded(Exception):
    """The group is rebalancing, or has removed this member."""


class Member:
    def __init__(
        self, session: Session, group: str, topic: str, partitions: Sequence[int], session_ms: int
    ) -> None:
        self._session = session
        self.group = group
        self._topic = topic
        self._partitions = list(partitions)
        self._session_ms = session_ms
        self.member_id = NO_MEMBER
        self.generation = -1
        self.checks: dict[int, PartitionCheck] = {}  # of the assigned partitions
        self._to_commit: set[int] = set()

    # --- membership ---

    def enter(self) -> list[str]:
        """Join and sync until it is a member; returns violations about its committed offsets."""
        while True:
            joined = self._join()
            assignments = {}
            if joined.leader == self.member_id:
                members = sorted(member.member_id for member in joined.members)
                assignments = self._assign(members)
            assigned = self._sync(assignments)
            if assigned is not None:
                break
        return self._start(assigned)

    def _join(self) -> JoinGroupResponse:
        while True:
            request = JoinGroupRequest(
                group_id=self.group,
                session_timeout_ms=self._session_ms,
                rebalance_timeout_ms=REBALANCE_MS,
                member_id=self.member_id,
                protocol_type=PROTOCOL_TYPE,
                protocols=[JoinGroupRequestProtocol(PROTOCOL, subscription(self._topic))],
            )
            answer: JoinGroupResponse = self._session.coordinator(self.group, "group").call(
                request,
                top_level_error,
                expected=(ErrorCode.MEMBER_ID_REQUIRED, *REMOVED, *REBALANCING),
            )
            if answer.error_code == 0:
                self.member_id, self.generation = answer.member_id, answer.generation_id
                return answer
            if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = answer.member_id
            elif answer.error_code in REMOVED:
                self.member_id = NO_MEMBER

    def _assign(self, members: list[str]) -> dict[str, bytes]:
        return {
            member: assignment(self._topic, self._partitions[number :: len(members)])
            for number, member in enumerate(members)
        }

    def _sync(self, assignments: dict[str, bytes]) -> list[int] | None:
        """The partitions assigned to it; None: another rebalance has begun."""
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=PROTOCOL,
            assignments=[SyncGroupRequestAssignment(*item) for item in assignments.items()],
        )
        answer = self._session.coordinator(self.group, "group").call(
            request, top_level_error, expected=REBALANCING | REMOVED
        )
        if answer.error_code in REMOVED:
            self.member_id = NO_MEMBER
        if answer.error_code:
            return None
        assigned = assigned_partitions(bytes(answer.assignment)) or []
        return [partition for topic, partition in assigned if topic == self._topic]

    def heartbeat(self, due: float | None = None) -> bool:
        """False: it has to join again."""
        request = HeartbeatRequest(self.group, self.generation, self.member_id)
        answer = self._session.coordinator(self.group, "heartbeat", "heartbeat").call(
            request, top_level_error, due=due, expected=REBALANCING | REMOVED
        )
        self._note_error(answer.error_code)
        return not answer.error_code

    def _note_error(self, code: int) -> None:
        if code in REMOVED:
            self.member_id = NO_MEMBER

    def leave(self) -> None:
        if self.member_id == NO_MEMBER:
            return
        request = LeaveGroupRequest(self.group, members=[MemberIdentity(self.member_id)])
        self._session.coordinator(self.group, "group").call(request, top_level_error)
        self.member_id = NO_MEMBER

    # --- reading ---

    def _start(self, assigned: list[int]) -> list[str]:
        known = {number: _committed.get(self._key(number), -1) for number in assigned}
        self.checks, self._to_commit = {}, set()
        if not assigned:
            return []
        request = OffsetFetchRequest(self.group, [OffsetFetchRequestTopic(self._topic, assigned)])
        answer = self._session.coordinator(self.group, "group").call(request, top_level_error)
        violations = []
        for fetched in answer.topics[0].partitions:
            number, offset = fetched.partition_index, fetched.committed_offset
            if fetched.error_code:
                raise RequestRefused("OffsetFetch", fetched.error_code)
            name = f"{self._topic}-{number}"
            if offset < known[number]:
                violations.append(
                    f"lost: group {self.group} {name}: {known[number]} was committed, "
                    f"and OffsetFetch returns {offset}"
                )
            if offset < 0:
                offset = self._session.offset(self._topic, number, EARLIEST)
            self.checks[number] = PartitionCheck(name, offset)
        return violations

    def fetch(self, partition: int, max_bytes: int, due: float) -> list[str]:
        """Fetch from one partition; returns violations."""
        check = self.checks[partition]
        answer = self._session.fetch(
            self._topic, partition, check.position, max_bytes=max_bytes, due=due
        )
        before = check.position
        if answer.error_code:
            start, violations = self._session.out_of_range(self._topic, partition, before)
            self.checks[partition] = PartitionCheck(f"{self._topic}-{partition}", start)
            return violations
        violations = check.feed(records_of(answer))
        if check.position > before:
            self._to_commit.add(partition)
        return violations

    def commit(self) -> None:
        """Commit what it read since the last commit. Raises RejoinNeeded."""
        if not self._to_commit:
            return
        offsets = {number: self.checks[number].position for number in sorted(self._to_commit)}
        positions = [OffsetCommitRequestPartition(*item) for item in offsets.items()]
        request = OffsetCommitRequest(
            self.group,
            self.generation,
            self.member_id,
            topics=[OffsetCommitRequestTopic(self._topic, partitions=positions)],
        )
        answer = self._session.coordinator(self.group, "group").call(
            request, partition_error, expected=REBALANCING | REMOVED
        )
        code = partition_error(answer)
        self._note_error(code)
        if code:
            raise RejoinNeeded
        for number, offset in offsets.items():
            key = self._key(number)
            _committed[key] = max(_committed.get(key, -1), offset)
        self._to_commit.clear()

    def _key(self, partition: int) -> tuple[str, str, int]:
        return self.group, self._topic, partition
