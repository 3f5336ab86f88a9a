"""A member of a consumer group on a connection of its own, for benchmarks: see groups.py."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from broker.errors import ErrorCode
from broker.wire.apis import APIS, Api, ApiKey
from broker.wire.frame import LENGTH, read_response, request_frame
from broker.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from broker.wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from broker.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from broker.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from broker.wire.schema import Message
from loadtest.bench.harness.client import RequestFailed
from loadtest.bench.harness.coordinator_requests import NOT_YET
from loadtest.bench.harness.target import SENT

JOIN, HEARTBEAT, LEAVE, SYNC = (
    APIS[ApiKey.JOIN_GROUP],
    APIS[ApiKey.HEARTBEAT],
    APIS[ApiKey.LEAVE_GROUP],
    APIS[ApiKey.SYNC_GROUP],
)
PROTOCOL = "range"
SUBSCRIPTION = bytes(60)  # about what a consumer of two topics says
ASSIGNMENT = bytes(60)
SESSION_MS = 60_000


class Link(asyncio.Protocol):
    """A connection: one request at a time, or the same one over and over."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._waiting: asyncio.Future[bytes] | None = None
        self._again: bytes | None = None
        self._same = b""
        self.repeats = 0
        self.fault: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= LENGTH.size:
            (size,) = LENGTH.unpack_from(self._buffer)
            if len(self._buffer) < LENGTH.size + size:
                return
            frame = bytes(self._buffer[LENGTH.size : LENGTH.size + size])
            del self._buffer[: LENGTH.size + size]
            if self._again is not None:
                self._repeat(frame)
            elif self._waiting is not None and not self._waiting.done():
                self._waiting.set_result(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        self.fault = exc or ConnectionError("the broker closed the connection")
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(self.fault)

    async def call(self, api: Api, message: Message) -> Any:
        assert self._transport is not None
        if self.fault is not None:
            raise self.fault
        self._waiting = asyncio.get_running_loop().create_future()
        version = SENT[api.key]
        self._transport.write(request_frame(api, version, 1, "bench", message))
        _, response = read_response(api, version, await self._waiting)
        return response

    # --- the same request, closed loop ---

    def start_repeating(self, request: bytes, expected: bytes) -> None:
        assert self._transport is not None
        self._again, self._same = request, expected
        self._transport.write(request)

    def _repeat(self, frame: bytes) -> None:
        assert self._transport is not None
        if frame != self._same:
            self.fault = RequestFailed(f"another answer than before: {frame.hex()}")
            self._transport.abort()
            return
        self.repeats += 1
        if self._again:
            self._transport.write(self._again)
        else:
            self._again = None
            if self._waiting is not None and not self._waiting.done():
                self._waiting.set_result(frame)

    async def stop_repeating(self) -> int:
        """After the answer that is due; how many there were."""
        if self.fault is not None:
            raise self.fault
        self._waiting = asyncio.get_running_loop().create_future()
        self._again = b""
        await self._waiting
        return self.repeats

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class BenchMember:
    def __init__(self, group_id: str, link: Link) -> None:
        self.group_id = group_id
        self.link = link
        self.member_id = ""
        self.generation = -1
        self.is_leader = False
        self._others: list[str] = []

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
            answer: JoinGroupResponse = await self.link.call(JOIN, request)
            if answer.error_code in NOT_YET:
                await asyncio.sleep(0.05)
                continue
            self.member_id = answer.member_id
            if answer.error_code != ErrorCode.MEMBER_ID_REQUIRED:
                break
        if answer.error_code:
            raise RequestFailed(f"JoinGroup: error {answer.error_code}")
        self.generation = answer.generation_id
        self.is_leader = answer.leader == self.member_id
        self._others = [member.member_id for member in answer.members]

    async def sync(self) -> None:
        request = SyncGroupRequest(
            group_id=self.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            protocol_type="consumer",
            protocol_name=PROTOCOL,
            assignments=[SyncGroupRequestAssignment(name, ASSIGNMENT) for name in self._others],
        )
        answer = await self.link.call(SYNC, request)
        if answer.error_code:
            raise RequestFailed(f"SyncGroup: error {answer.error_code}")

    async def form(self, size: int, complete: asyncio.Event) -> None:
        """Join, and again whenever somebody came too late, until all are in one generation.

        A broker that does not wait for more members begins with a generation of the first one.
        """
        while not complete.is_set():
            await self.join()
            if len(self._others) == size:  # only the leader is told who is in it
                complete.set()
            while not complete.is_set():
                await asyncio.sleep(0.005)
                if not complete.is_set() and await self._is_rebalancing():
                    break

    async def follow(self) -> None:
        """Until a heartbeat says that a rebalance is on; then take part."""
        while True:
            if await self._is_rebalancing():
                break
            await asyncio.sleep(0.001)
        await self.join()

    async def _is_rebalancing(self) -> bool:
        error = await self.heartbeat()
        if error not in (0, ErrorCode.REBALANCE_IN_PROGRESS):
            raise RequestFailed(f"Heartbeat: error {error}")
        return error == ErrorCode.REBALANCE_IN_PROGRESS

    def _beat(self) -> HeartbeatRequest:
        return HeartbeatRequest(self.group_id, self.generation, self.member_id)

    async def heartbeat(self) -> int:
        answer: HeartbeatResponse = await self.link.call(HEARTBEAT, self._beat())
        return answer.error_code

    def heartbeat_frame(self) -> bytes:
        return bytes(request_frame(HEARTBEAT, SENT[HEARTBEAT.key], 1, "bench", self._beat()))

    async def leave(self) -> None:
        request = LeaveGroupRequest(
            group_id=self.group_id, members=[MemberIdentity(self.member_id)]
        )
        await self.link.call(LEAVE, request)
