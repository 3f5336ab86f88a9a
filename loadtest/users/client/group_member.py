"""A member of a consumer group: joins, shares out the partitions, fetches, commits, leaves.

Heartbeats go over a connection of their own, as in every client: a parked JoinGroup would hold them
up. Who calls `heartbeat` and when is the user's affair.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from broker.errors import ErrorCode
from broker.wire.consumer_protocol import assigned_partitions
from broker.wire.messages.heartbeat import HeartbeatRequest
from broker.wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from broker.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from broker.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from broker.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from broker.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from loadtest.users.client.connection import Refused, top_level
from loadtest.users.client.session import EARLIEST, Session, blob_of, first_partition
from loadtest.users.client.stamped import PartitionCheck

PROTOCOL, PROTOCOL_TYPE = "range", "consumer"
REBALANCE_MS = 60_000
NO_MEMBER = ""
# Not faults: how a member hears that the group has moved on without it.
REBALANCING = frozenset({ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION})
OUSTED = frozenset({ErrorCode.UNKNOWN_MEMBER_ID})

# What this process knows to be committed: group, topic, partition -> offset. Offsets of a group
# only grow here, because a member reads on from what is committed, and only its owner may commit.
_committed: dict[tuple[str, str, int], int] = {}


class OutOfGroup(Exception):
    """The group has moved on: join again."""


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
        self.checks: dict[int, PartitionCheck] = {}  # of the partitions it has
        self._to_commit: set[int] = set()

    # --- membership ---

    def enter(self) -> list[str]:
        """Join and sync until it is in; tells what is wrong with the offsets it starts from."""
        while True:
            joined = self._join()
            assignments = {}
            if joined.leader == self.member_id:
                members = sorted(member.member_id for member in joined.members)
                assignments = self._share_out(members)
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
                request, top_level, fine=(ErrorCode.MEMBER_ID_REQUIRED, *OUSTED, *REBALANCING)
            )
            if answer.error_code == 0:
                self.member_id, self.generation = answer.member_id, answer.generation_id
                return answer
            if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = answer.member_id
            elif answer.error_code in OUSTED:
                self.member_id = NO_MEMBER

    def _share_out(self, members: list[str]) -> dict[str, bytes]:
        return {
            member: assignment(self._topic, self._partitions[number :: len(members)])
            for number, member in enumerate(members)
        }

    def _sync(self, assignments: dict[str, bytes]) -> list[int] | None:
        """The partitions that are its own; None: another rebalance began meanwhile."""
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=PROTOCOL,
            assignments=[SyncGroupRequestAssignment(*item) for item in assignments.items()],
        )
        answer = self._session.coordinator(self.group, "group").call(
            request, top_level, fine=REBALANCING | OUSTED
        )
        if answer.error_code in OUSTED:
            self.member_id = NO_MEMBER
        if answer.error_code:
            return None
        places = assigned_partitions(bytes(answer.assignment))
        return [partition for topic, partition in places or [] if topic == self._topic]

    def heartbeat(self, due: float | None = None) -> bool:
        """Whether it is still in, and nobody is waiting for it to join again."""
        request = HeartbeatRequest(self.group, self.generation, self.member_id)
        answer = self._session.coordinator(self.group, "heartbeat", "heartbeat").call(
            request, top_level, due=due, fine=REBALANCING | OUSTED
        )
        self._note(answer.error_code)
        return not answer.error_code

    def _note(self, code: int) -> None:
        if code in OUSTED:
            self.member_id = NO_MEMBER

    def leave(self) -> None:
        if self.member_id == NO_MEMBER:
            return
        request = LeaveGroupRequest(self.group, members=[MemberIdentity(self.member_id)])
        self._session.coordinator(self.group, "group").call(request, top_level)
        self.member_id = NO_MEMBER

    # --- reading ---

    def _start(self, assigned: list[int]) -> list[str]:
        known = {number: _committed.get(self._key(number), -1) for number in assigned}
        self.checks, self._to_commit = {}, set()
        if not assigned:
            return []
        request = OffsetFetchRequest(self.group, [OffsetFetchRequestTopic(self._topic, assigned)])
        answer = self._session.coordinator(self.group, "group").call(request, top_level)
        faults = []
        for told in answer.topics[0].partitions:
            number, offset = told.partition_index, told.committed_offset
            if told.error_code:
                raise Refused("OffsetFetch", told.error_code)
            place = f"{self._topic}-{number}"
            if offset < known[number]:
                faults.append(
                    f"lost: group {self.group} {place}: {known[number]} was committed, "
                    f"and {offset} is what it starts from"
                )
            if offset < 0:
                offset = self._session.offset(self._topic, number, EARLIEST)
            self.checks[number] = PartitionCheck(place, offset)
        return faults

    def fetch(self, partition: int, max_bytes: int, due: float) -> list[str]:
        """What is wrong with what it reads."""
        check = self.checks[partition]
        answer = self._session.fetch(
            self._topic, partition, check.position, max_bytes=max_bytes, due=due
        )
        before = check.position
        if answer.error_code:
            start, faults = self._session.out_of_range(self._topic, partition, before)
            self.checks[partition] = PartitionCheck(f"{self._topic}-{partition}", start)
            return faults
        faults = check.feed(blob_of(answer))
        if check.position > before:
            self._to_commit.add(partition)
        return faults

    def commit(self) -> None:
        """What it read since the last time. Raises OutOfGroup."""
        if not self._to_commit:
            return
        offsets = {number: self.checks[number].position for number in sorted(self._to_commit)}
        places = [OffsetCommitRequestPartition(*item) for item in offsets.items()]
        request = OffsetCommitRequest(
            self.group,
            self.generation,
            self.member_id,
            topics=[OffsetCommitRequestTopic(self._topic, partitions=places)],
        )
        answer = self._session.coordinator(self.group, "group").call(
            request, first_partition, fine=REBALANCING | OUSTED
        )
        code = first_partition(answer)
        self._note(code)
        if code:
            raise OutOfGroup
        for number, offset in offsets.items():
            key = self._key(number)
            _committed[key] = max(_committed.get(key, -1), offset)
        self._to_commit.clear()

    def _key(self, partition: int) -> tuple[str, str, int]:
        return self.group, self._topic, partition


def _topic_name(topic: str) -> bytes:
    return struct.pack(">h", len(topic)) + topic.encode()


def subscription(topic: str) -> bytes:
    """A ConsumerProtocolSubscription, version 0."""
    return struct.pack(">hi", 0, 1) + _topic_name(topic) + struct.pack(">i", -1)


def assignment(topic: str, partitions: Sequence[int]) -> bytes:
    """A ConsumerProtocolAssignment, version 0."""
    numbers = struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)
    return struct.pack(">hi", 0, 1) + _topic_name(topic) + numbers + struct.pack(">i", -1)
