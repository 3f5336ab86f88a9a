"""The benchmark of consumer groups: raw members on connections of their own, over uvloop.

A run forms groups, lets them rebalance again and again (each leader joins again, the others hear of
it by heartbeat and follow), then lets every member heartbeat in a closed loop. Forming includes the
broker's initial rebalance delay; a rebalance does not. Members hold no partitions: what is measured
is the coordinator. All members live in one Python process, whose own work is most of what a
rebalance takes here: its CPU and the worker's are shown apart. Baseline of the heartbeats: a bare
uvloop server that answers the same frames over as many connections.
"""

from __future__ import annotations

import asyncio
import resource
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, TypeVar, cast

from broker.errors import ErrorCode
from broker.wire.apis import APIS, Api
from broker.wire.frame import LENGTH, read_response, request_frame
from broker.wire.messages.find_coordinator import FindCoordinatorRequest
from broker.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from broker.wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from broker.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from broker.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from broker.wire.schema import Message
from loadtest.client import Client, RequestFailed
from loadtest.measure import CpuMeter, cpu_seconds, resident_bytes
from loadtest.target import Target
from router.slots import owner_of

FIND_COORDINATOR = APIS[10]
JOIN, HEARTBEAT, LEAVE, SYNC = APIS[11], APIS[12], APIS[13], APIS[14]
PROTOCOL = "range"
SUBSCRIPTION = bytes(60)  # about what a consumer of two topics says
ASSIGNMENT = bytes(60)
SESSION_MS = 60_000
PATIENCE_S = 120.0
CONNECTING = 200  # at once
LEAST_ROUNDS = 3  # of rebalances
HEARTBEAT_ANSWER = LENGTH.pack(1) + bytes(8)  # correlation id 1, no tags, no delay, no error
OF_WORKERS = (
    "form us/member",
    "of it worker us",
    "worker us/heartbeat",
    "heartbeats/s of worker core",
)
LEAST_MEMBERS_FOR_MEMORY = 100  # fewer disappear in what the process takes anyway

T = TypeVar("T")


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
        self._transport.write(request_frame(api, api.highest, 1, "bench", message))
        _, response = read_response(api, api.highest, await self._waiting)
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
            self.member_id = answer.member_id
            if answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                await asyncio.sleep(0.05)
            elif answer.error_code != ErrorCode.MEMBER_ID_REQUIRED:
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

    async def follow(self) -> None:
        """Until a heartbeat says that a rebalance is on; then take part."""
        while True:
            error = await self.heartbeat()
            if error == ErrorCode.REBALANCE_IN_PROGRESS:
                break
            if error:
                raise RequestFailed(f"Heartbeat: error {error}")
            await asyncio.sleep(0.001)
        await self.join()

    def _beat(self) -> HeartbeatRequest:
        return HeartbeatRequest(self.group_id, self.generation, self.member_id)

    async def heartbeat(self) -> int:
        answer: HeartbeatResponse = await self.link.call(HEARTBEAT, self._beat())
        return answer.error_code

    def heartbeat_frame(self) -> bytes:
        return bytes(request_frame(HEARTBEAT, HEARTBEAT.highest, 1, "bench", self._beat()))

    async def leave(self) -> None:
        request = LeaveGroupRequest(
            group_id=self.group_id, members=[MemberIdentity(self.member_id)]
        )
        await self.link.call(LEAVE, request)


class GroupsRun:
    """One measurement: `groups` groups of `members` members."""

    def __init__(self, target: Target, members: int, groups: int, seconds: float) -> None:
        self._target = target
        self._members, self._groups, self._seconds = members, groups, seconds

    @property
    def name(self) -> str:
        word = "group" if self._groups == 1 else "groups"
        return f"{self._groups:,} {word} of {self._members:,}"

    async def measure(self, ports: Sequence[int]) -> dict[str, float | None]:
        """`ports` are the workers', by index; CPU and memory are None when they are not ours."""
        memory = resident_bytes(self._target.worker_pids)
        teams = await self._connect(ports)
        members = [member for team in teams for member in team]
        try:
            figures: dict[str, float | None] = {**await self._form(teams, members)}
            grown = resident_bytes(self._target.worker_pids) - memory
            figures |= await self._rebalance(teams, members)
            figures |= await self._heartbeats(members)
            if not self._target.worker_pids:
                figures |= dict.fromkeys(OF_WORKERS, None)
            elif len(members) >= LEAST_MEMBERS_FOR_MEMORY:
                figures["KB/member"] = grown / len(members) / 1024
            await together(member.leave() for member in members)
        finally:
            for member in members:
                member.link.close()
        return figures

    async def _connect(self, ports: Sequence[int]) -> list[list[BenchMember]]:
        names = [f"bench-{secrets.token_hex(6)}" for _ in range(self._groups)]
        wanted = [name for name in names for _ in range(self._members)]
        if self._target.worker_pids:
            homes = {name: (self._target.host, ports[owner_of(name, len(ports))]) for name in names}
        else:
            homes = coordinators(self._target, names)
        links = await _connected([homes[name] for name in wanted])
        members = [BenchMember(name, link) for name, link in zip(wanted, links, strict=True)]
        size = self._members
        return [members[at : at + size] for at in range(0, len(members), size)]

    async def _form(
        self, teams: list[list[BenchMember]], members: list[BenchMember]
    ) -> dict[str, float]:
        meter = CpuMeter(self._target.pids)
        began = time.perf_counter()
        await together(member.join() for member in members)
        _check(teams)
        await together(member.sync() for member in members)
        seconds = time.perf_counter() - began
        return {"form s": seconds, "form us/member": _each(meter.stop()["worker"], len(members))}

    async def _rebalance(
        self, teams: list[list[BenchMember]], members: list[BenchMember]
    ) -> dict[str, float]:
        """Over and over: one rebalance of a small group is shorter than what can be told apart."""
        meter = CpuMeter(self._target.pids)
        began = time.perf_counter()
        rounds: list[float] = []
        joining = 0.0
        while len(rounds) < LEAST_ROUNDS or time.perf_counter() - began < self._seconds:
            start = time.perf_counter()
            await _join_again(members)
            joining += time.perf_counter() - start
            _check(teams)
            await together(member.sync() for member in members)
            rounds.append(time.perf_counter() - start)
        cpu = meter.stop()
        served = len(members) * len(rounds)
        seconds = statistics.median(rounds)
        return {
            "rebalance ms": seconds * 1000,
            "rebalance us/member": _each(seconds, len(members)),
            "of it worker us": _each(cpu["worker"], served),
            "of it client us": _each(cpu["client"], served),
            "joins/s": served / joining,
        }

    async def _heartbeats(self, members: list[BenchMember]) -> dict[str, float]:
        meter = CpuMeter(self._target.pids)
        began = time.perf_counter()
        for member in members:
            member.link.start_repeating(member.heartbeat_frame(), HEARTBEAT_ANSWER)
        await asyncio.sleep(self._seconds)
        count = sum(await together(member.link.stop_repeating() for member in members))
        seconds = time.perf_counter() - began
        cpu = meter.stop()["worker"]
        return {
            "heartbeats/s": count / seconds,
            "worker us/heartbeat": _each(cpu, count),
            "heartbeats/s of worker core": count / cpu if cpu else 0.0,
            "bare us/request": await self._bare(members[0].heartbeat_frame(), len(members)),
        }

    async def _bare(self, frame: bytes, connections: int) -> float:
        """CPU of a server that only answers."""
        size = str(len(HEARTBEAT_ANSWER))
        server = subprocess.Popen(  # noqa: ASYNC220 (nothing else runs meanwhile)
            [sys.executable, "-m", "loadtest.echo", size], stdout=subprocess.PIPE
        )
        assert server.stdout is not None
        links: list[Link] = []
        try:
            port = int(server.stdout.readline())
            links = await _connected([("127.0.0.1", port)] * connections)
            before = cpu_seconds(server.pid)
            for link in links:
                link.start_repeating(frame, bytes(len(HEARTBEAT_ANSWER)))
            await asyncio.sleep(self._seconds)
            count = sum(await together(link.stop_repeating() for link in links))
            return _each(cpu_seconds(server.pid) - before, count)
        finally:
            for link in links:
                link.close()
            server.terminate()
            server.wait()
            server.stdout.close()


def allow_connections() -> None:
    """As many descriptors as this user may have: a connection per member."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    async with asyncio.timeout(PATIENCE_S):
        return await asyncio.gather(*work)


def coordinators(target: Target, groups: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Where groups are at home, by asking: other brokers have other rules."""
    homes = {}
    deadline = time.monotonic() + PATIENCE_S
    with Client(target.host, target.port) as client:
        for group in groups:
            while True:
                answer = client.call(FIND_COORDINATOR, 3, FindCoordinatorRequest(group))
                if answer.error_code == 0:
                    break
                if time.monotonic() > deadline:
                    raise RequestFailed(f"FindCoordinator: error {answer.error_code}")
                time.sleep(0.1)  # Kafka makes its topic of offsets when it is first asked
            homes[group] = (answer.host, answer.port)
    return homes


async def _connected(addresses: Sequence[tuple[str, int]]) -> list[Link]:
    loop = asyncio.get_running_loop()
    at_once = asyncio.Semaphore(CONNECTING)

    async def connect(address: tuple[str, int]) -> Link:
        async with at_once:
            _, link = await loop.create_connection(Link, *address)
        return link

    return await together(connect(address) for address in addresses)


async def _join_again(members: list[BenchMember]) -> None:
    """Leaders first, as it is: the others hear of the rebalance that this begins."""
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as everybody:
        for member in members:
            if member.is_leader:
                everybody.create_task(member.join())
        await asyncio.sleep(0)  # their requests are on the way
        for member in members:
            if not member.is_leader:
                everybody.create_task(member.follow())


def _check(teams: list[list[BenchMember]]) -> None:
    for team in teams:
        if len({member.generation for member in team}) != 1:
            raise RequestFailed("members of one group are in several generations")


def _each(seconds: float, count: int) -> float:
    return seconds / max(count, 1) * 1e6
