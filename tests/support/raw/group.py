"""Group members that speak the protocol with Moldau's own codecs, in any version.

    with RawMember(coordinator_port(broker, group), group) as member:
        member.enter()                        # joins, gets its id, joins again, syncs
        assert member.heartbeat() == 0

For what real clients hide: exact codes, generations, versions, hundreds of members in one process.
"""

import time
from typing import Any

from moldau.broker.wire.messages.find_coordinator import FindCoordinatorRequest
from moldau.broker.wire.messages.heartbeat import HeartbeatRequest
from moldau.broker.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
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
from tests.support.brokers.running import Broker, wait_until
from tests.support.raw.client import RawClient

MEMBER_ID_REQUIRED = 79
LOADING, NOT_AVAILABLE, NOT_COORDINATOR = 14, 15, 16
NAMED_COMMIT, NAMED_OFFSET_FETCH = 9, 9  # the last versions that name topics rather than ids
GROUP_KEY = 0
LOAD_PATIENCE_S = 30.0


def coordinator_port(broker: Broker, group: str) -> int:
    """Where the worker that owns a group listens; asked again while that is down."""
    request = FindCoordinatorRequest(key_type=GROUP_KEY, coordinator_keys=[group])
    deadline = time.monotonic() + LOAD_PATIENCE_S
    with RawClient(broker.port) as client:
        while True:
            (found,) = client.call(request).coordinators
            if found.error_code != NOT_AVAILABLE or time.monotonic() > deadline:
                break
            time.sleep(0.02)
    assert found.error_code == 0, found
    port: int = found.port
    return port


class RawMember(RawClient):
    """One member on a connection of its own."""

    def __init__(
        self,
        port: int,
        group: str,
        *,
        member_id: str = "",
        instance: str | None = None,
        protocol_type: str = "consumer",
        protocols: dict[str, bytes] | None = None,
        session_ms: int = 30_000,
        rebalance_ms: int = 60_000,
        timeout: float = 60,
    ) -> None:
        super().__init__(port, timeout=timeout)
        self.port = port
        self.group = group
        self.member_id = member_id
        self.instance = instance
        self.generation = -1
        self.protocol_type = protocol_type
        self.protocols = protocols or {"range": b"topics"}
        self.session_ms = session_ms
        self.rebalance_ms = rebalance_ms
        self.joined: Any = None

    # --- halves, for members that join at the same time ---

    def send_join(self, version: int | None = None) -> None:
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=self.session_ms,
            rebalance_timeout_ms=self.rebalance_ms,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type=self.protocol_type,
            protocols=[JoinGroupRequestProtocol(*item) for item in self.protocols.items()],
        )
        self.send(request, version)

    def receive_join(self) -> Any:
        self.joined = self.receive()
        if self.joined.error_code in (0, MEMBER_ID_REQUIRED):
            self.member_id = self.joined.member_id
        if self.joined.error_code == 0:
            self.generation = self.joined.generation_id
        return self.joined

    def send_sync(
        self, assignments: dict[str, bytes] | None = None, version: int | None = None
    ) -> None:
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type=self.protocol_type,
            protocol_name=self.joined.protocol_name if self.joined else None,
            assignments=[SyncGroupRequestAssignment(*item) for item in (assignments or {}).items()],
        )
        self.send(request, version)

    # --- whole calls ---

    def join(self, version: int | None = None) -> Any:
        """Join and wait for the rebalance; a member that gets its id joins again with it."""
        deadline = time.monotonic() + LOAD_PATIENCE_S
        while True:
            self.send_join(version)
            code = self.receive_join().error_code
            if code == LOADING and time.monotonic() < deadline:
                time.sleep(0.02)
            elif code != MEMBER_ID_REQUIRED:
                return self.joined

    def sync(self, assignments: dict[str, bytes] | None = None, version: int | None = None) -> Any:
        self.send_sync(assignments, version)
        return self.receive()

    def enter(self, assignment: bytes = b"mine") -> Any:
        """Join and sync as the only member."""
        answer = self.join()
        assert answer.error_code == 0, answer
        synced = self.sync({self.member_id: assignment})
        assert synced.error_code == 0, synced
        return synced

    def heartbeat(self, version: int | None = None) -> int:
        request = HeartbeatRequest(self.group, self.generation, self.member_id, self.instance)
        return int(self.call(request, version).error_code)

    def leave(self) -> int:
        leaving = MemberIdentity(self.member_id, self.instance)
        answer = self.call(LeaveGroupRequest(group_id=self.group, members=[leaving]))
        return int(answer.error_code or answer.members[0].error_code)

    def commit(
        self,
        topic: str,
        offset: int,
        *,
        partition: int = 0,
        metadata: str | None = "",
        leader_epoch: int = -1,
        version: int = NAMED_COMMIT,
    ) -> int:
        """The partition's code."""
        item = OffsetCommitRequestPartition(partition, offset, leader_epoch, metadata)
        request = OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
            topics=[OffsetCommitRequestTopic(topic, partitions=[item])],
        )
        return int(self.call(request, version).topics[0].partitions[0].error_code)

    def committed(self, topic: str, partition: int = 0) -> int:
        """What the group committed; -1 for nothing."""
        return int(fetch_offsets(self, self.group, {topic: [partition]})[topic, partition])


def form_group(members: list[RawMember]) -> None:
    """All join and sync one generation: the leader gives each its number."""
    fetch_offsets(members[0], members[0].group, {})  # once it is loaded
    for member in members:
        member.send_join()
    for member in members:
        # A static member does not get its id first: its answer comes with the generation.
        if member.instance is None and member.receive_join().error_code == MEMBER_ID_REQUIRED:
            member.send_join()
    for member in members:
        if member.generation < 0:
            member.receive_join()
        assert member.joined.error_code == 0, member.joined
    assert len({member.generation for member in members}) == 1
    numbers = {member.member_id: b"%d" % number for number, member in enumerate(members)}
    for member in members:
        leads = member.joined.leader == member.member_id
        member.send_sync(numbers if leads else None)
    for number, member in enumerate(members):
        answer = member.receive()
        assert (answer.error_code, bytes(answer.assignment)) == (0, b"%d" % number)


def fetch_offsets(
    client: RawClient, group: str, wanted: dict[str, list[int]]
) -> dict[tuple[str, int], int]:
    """Committed offsets by topic and partition; waits while the coordinator loads."""
    topics = [
        OffsetFetchRequestTopics(name, partition_indexes=indexes)
        for name, indexes in wanted.items()
    ]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group, topics=topics)])
    answers: list[Any] = []

    def answered() -> bool:
        answers[:] = client.call(request, NAMED_OFFSET_FETCH).groups
        return bool(answers[0].error_code != LOADING)

    wait_until(answered, 30, f"{group} is loaded")
    assert answers[0].error_code == 0, answers[0]
    return {
        (topic.name, item.partition_index): item.committed_offset
        for topic in answers[0].topics
        for item in topic.partitions
    }
