"""Groups of the classic protocol: raw members, each on a connection of its own.

All groups rebalance at once: each leader joins again, the others learn of it by heartbeat and
follow. Members own no partitions: the coordinator alone is measured.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Protocol, TypeVar

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.frame import LENGTH
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
from moldau.loadtest.bench.harness.figures import Figures
from moldau.loadtest.bench.harness.request_connection import RequestConnection
from moldau.loadtest.bench.harness.requests import CORRELATION_ID, RequestTypes, encode
from moldau.loadtest.bench.harness.target import Target

PROTOCOL = "range"
SUBSCRIPTION = bytes(60)  # about the size for a consumer of two topics
ASSIGNMENT = bytes(60)
SESSION_MS = 60_000
TIMEOUT_S = 120.0
# Correlation id, no tags, no throttling, no error.
HEARTBEAT_RESPONSE = LENGTH.pack(CORRELATION_ID) + bytes(8)

T = TypeVar("T")


async def together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    async with asyncio.timeout(TIMEOUT_S):
        return await asyncio.gather(*work)


class GroupMember(Protocol):
    """A member of either protocol, as the benchmark uses it."""

    connection: MemberConnection

    def heartbeat_frame(self) -> bytes: ...

    def heartbeat_response(self) -> bytes:
        """The reply to a heartbeat while nothing changes, without its length."""

    async def leave(self) -> None: ...


class Groups(Protocol):
    """Groups of one protocol, as the benchmark measures them."""

    needed: ClassVar[RequestTypes]

    def prepared(
        self, target: Target, names: Sequence[str], size: int
    ) -> AbstractContextManager[Any]:
        """Whatever groups of `size` members need in the broker, while they are measured."""

    def add(self, name: str, connections: Sequence[MemberConnection]) -> None: ...

    @property
    def members(self) -> Sequence[GroupMember]: ...

    async def form(self) -> Figures:
        """Returns figures that only this protocol has."""

    async def rebalance(self) -> float:
        """Rebalance every group once; returns the seconds until all had joined, 0 if they are not
        known."""


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

    def heartbeat_response(self) -> bytes:
        return HEARTBEAT_RESPONSE

    async def leave(self) -> None:
        request = LeaveGroupRequest(
            group_id=self.group_id, members=[MemberIdentity(self.member_id)]
        )
        await self.connection.call(request)


class ClassicGroups:
    needed: ClassVar[RequestTypes] = [
        JoinGroupRequest,
        SyncGroupRequest,
        HeartbeatRequest,
        LeaveGroupRequest,
    ]

    def __init__(self) -> None:
        self._groups: list[list[BenchMember]] = []

    def prepared(
        self, target: Target, names: Sequence[str], size: int
    ) -> AbstractContextManager[None]:
        return nullcontext()

    def add(self, name: str, connections: Sequence[MemberConnection]) -> None:
        self._groups.append([BenchMember(name, connection) for connection in connections])

    @property
    def members(self) -> list[BenchMember]:
        return [member for group in self._groups for member in group]

    async def form(self) -> Figures:
        complete = [asyncio.Event() for _ in self._groups]
        await together(
            member.form(len(group), event)
            for group, event in zip(self._groups, complete, strict=True)
            for member in group
        )
        await self._sync()
        return {}

    async def rebalance(self) -> float:
        began = time.perf_counter()
        await self._rejoin()
        joined = time.perf_counter() - began
        await self._sync()
        return joined

    async def _rejoin(self) -> None:
        """Leaders first, which begins a rebalance; the others learn of it by heartbeat."""
        members = self.members
        try:
            async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as tasks:
                for member in members:
                    if member.is_leader:
                        tasks.create_task(member.join())
                await asyncio.sleep(0)  # their requests are sent
                for member in members:
                    if not member.is_leader:
                        tasks.create_task(member.follow())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _sync(self) -> None:
        for group in self._groups:
            if len({member.generation for member in group}) != 1:
                raise RequestFailed("members of one group are in several generations")
        await together(member.sync() for member in self.members)
