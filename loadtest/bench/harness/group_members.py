"""A member of a consumer group on a connection of its own: see loadtest/bench/groups.py."""

from __future__ import annotations

import asyncio

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from moldau.broker.wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from moldau.broker.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from moldau.broker.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from moldau.loadtest.bench.harness.client import RequestFailed, check_error
from moldau.loadtest.bench.harness.coordinator_requests import COORDINATOR_NOT_READY
from moldau.loadtest.bench.harness.request_connection import RequestConnection
from moldau.loadtest.bench.harness.requests import encode

PROTOCOL = "range"
SUBSCRIPTION = bytes(60)  # about the size for a consumer of two topics
ASSIGNMENT = bytes(60)
SESSION_MS = 60_000


class MemberConnection(RequestConnection):
    """One request at a time, or the same one over and over."""

    def __init__(self) -> None:
        super().__init__()
        self._repeated: bytes | None = None  # empty: stop after the next reply
        self._expected = b""
        self.repeats = 0

    def frame_received(self, frame: bytes) -> None:
        if self._repeated is not None:
            self._repeat(frame)
        else:
            super().frame_received(frame)

    # --- the same request, closed loop ---

    def start_repeating(self, request: bytes, expected: bytes) -> None:
        self._repeated, self._expected = request, expected
        self.send(request)

    def _repeat(self, frame: bytes) -> None:
        if frame != self._expected:
            self.error = RequestFailed(f"another response than before: {frame.hex()}")
            self.abort()
            return
        self.repeats += 1
        if self._repeated:
            self.send(self._repeated)
        else:
            self._repeated = None
            self._resolve(frame)

    async def stop_repeating(self) -> int:
        """Wait for the last reply; returns how many there were."""
        reply = self._expect_reply()
        self._repeated = b""
        await reply
        return self.repeats


class BenchMember:
    def __init__(self, group_id: str, connection: MemberConnection) -> None:
        self.group_id = group_id
        self.connection = connection
        self.member_id = ""
        self.generation = -1
        self.is_leader = False
        self._members: list[str] = []  # of the generation, known to the leader only

    async def join(self) -> None:
        while True:
            request = JoinGroupRequest(
                group_id=self.group_id,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=SESSION_MS,
                member_id=self.member_id,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(PROTOCOL, SUBSCRIPTION)],
            )
            answer: JoinGroupResponse = await self.connection.call(request)
            if answer.error_code in COORDINATOR_NOT_READY:
                await asyncio.sleep(0.05)
                continue
            self.member_id = answer.member_id
            if answer.error_code != ErrorCode.MEMBER_ID_REQUIRED:
                break
        check_error("JoinGroup", answer.error_code)
        self.generation = answer.generation_id
        self.is_leader = answer.leader == self.member_id
        self._members = [member.member_id for member in answer.members]

    async def sync(self) -> None:
        request = SyncGroupRequest(
            group_id=self.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            protocol_type="consumer",
            protocol_name=PROTOCOL,
            assignments=[SyncGroupRequestAssignment(name, ASSIGNMENT) for name in self._members],
        )
        answer = await self.connection.call(request)
        check_error("SyncGroup", answer.error_code)

    async def form(self, size: int, complete: asyncio.Event) -> None:
        """Join, and rejoin until all members are in one generation.

        A broker without an initial rebalance delay begins with a generation of one member.
        """
        while not complete.is_set():
            await self.join()
            if len(self._members) == size:
                complete.set()
            while not complete.is_set():
                await asyncio.sleep(0.005)
                if not complete.is_set() and await self._is_rebalancing():
                    break

    async def follow(self) -> None:
        """Send heartbeats until one reports a rebalance, then join again."""
        while True:
            if await self._is_rebalancing():
                break
            await asyncio.sleep(0.001)
        await self.join()

    async def _is_rebalancing(self) -> bool:
        answer: HeartbeatResponse = await self.connection.call(self._heartbeat())
        if answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
            return True
        check_error("Heartbeat", answer.error_code)
        return False

    def _heartbeat(self) -> HeartbeatRequest:
        return HeartbeatRequest(self.group_id, self.generation, self.member_id)

    def heartbeat_frame(self) -> bytes:
        return encode(self._heartbeat())

    async def leave(self) -> None:
        request = LeaveGroupRequest(
            group_id=self.group_id, members=[MemberIdentity(self.member_id)]
        )
        await self.connection.call(request)
