"""The groups benchmark: raw members on connections of their own, over uvloop.

A run forms groups, makes them rebalance again and again (each leader joins again, the others learn
of it by heartbeat and follow), then every member sends heartbeats in a closed loop. Forming a group
includes the broker's initial rebalance delay; a rebalance does not. Members own no partitions: the
coordinator alone is measured. All members live in one Python process, whose own work is most of the
time of a rebalance here, so its CPU and the worker's are shown apart. Baseline of the heartbeats: a
bare uvloop server that answers the same frames over as many connections.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import statistics
import time
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, TypeVar

import uvloop

from moldau.broker.placement import owner_of
from moldau.broker.wire.frame import LENGTH
from moldau.broker.wire.messages.find_coordinator import FindCoordinatorRequest
from moldau.broker.wire.messages.heartbeat import HeartbeatRequest
from moldau.broker.wire.messages.join_group import JoinGroupRequest
from moldau.broker.wire.messages.leave_group import LeaveGroupRequest
from moldau.broker.wire.messages.metadata import MetadataRequest
from moldau.broker.wire.messages.sync_group import SyncGroupRequest
from moldau.loadtest.bench.harness.benchmark import Advance, Benchmark, Rows
from moldau.loadtest.bench.harness.client import Client, RequestFailed
from moldau.loadtest.bench.harness.coordinator_requests import coordinators
from moldau.loadtest.bench.harness.echo_server import echo_server
from moldau.loadtest.bench.harness.figures import Figures, summaries, summary
from moldau.loadtest.bench.harness.group_members import BenchMember, MemberConnection
from moldau.loadtest.bench.harness.measure import CpuMeter, cpu_seconds, resident_bytes
from moldau.loadtest.bench.harness.requests import CORRELATION_ID, RequestTypes
from moldau.loadtest.bench.harness.secured import open_connection
from moldau.loadtest.bench.harness.target import Target, await_ready, broker_under_test, running

GROUPS = [(10, 1), (100, 1), (1000, 1), (2, 2000)]  # members of a group, groups
TIMEOUT_S = 120.0
MAX_CONNECTING = 200  # connections that are being opened at once
MIN_REBALANCES = 3
# Correlation id, no tags, no throttling, no error.
HEARTBEAT_RESPONSE = LENGTH.pack(CORRELATION_ID) + bytes(8)
# Figure -> the role whose processes it is about: None if they are not known.
ROLE_OF_FIGURE = {
    "form us/member": "worker",
    "of it broker us": "broker",
    "of it worker us": "worker",
    "broker us/heartbeat": "broker",
    "worker us/heartbeat": "worker",
    "heartbeats/s of worker core": "worker",
    "broker MB": "broker",
}
MIN_MEMBERS_FOR_MEMORY = 100  # the memory of fewer is lost in that of the process

NEEDED: RequestTypes = [
    MetadataRequest,
    FindCoordinatorRequest,
    JoinGroupRequest,
    SyncGroupRequest,
    HeartbeatRequest,
    LeaveGroupRequest,
]

T = TypeVar("T")


class GroupsRun:
    """One measurement: `groups` groups of `members` members."""

    def __init__(self, target: Target, members: int, groups: int, seconds: float) -> None:
        self._target = target
        self._members, self._groups, self._seconds = members, groups, seconds

    @property
    def name(self) -> str:
        word = "group" if self._groups == 1 else "groups"
        return f"{self._groups:,} {word} of {self._members:,}"

    async def measure(self, ports: Sequence[int]) -> Figures:
        """`ports` are the workers', by index. Figures about unknown processes are None."""
        memory = resident_bytes(self._target.worker_pids)
        groups = await self._connect(ports)
        members = [member for group in groups for member in group]
        try:
            figures: Figures = {**await self._form(groups, members)}
            grown = resident_bytes(self._target.worker_pids) - memory
            figures |= await self._rebalance(groups, members)
            figures |= await self._heartbeats(members)
            figures["broker MB"] = resident_bytes(self._target.broker_pids) / 1e6
            for name, role in ROLE_OF_FIGURE.items():
                if not self._target.pids[role]:
                    figures[name] = None
            if self._target.worker_pids and len(members) >= MIN_MEMBERS_FOR_MEMORY:
                figures["KB/member"] = grown / len(members) / 1024
            await together(member.leave() for member in members)
        finally:
            for member in members:
                member.connection.close()
        return figures

    async def _connect(self, ports: Sequence[int]) -> list[list[BenchMember]]:
        names = [f"bench-{secrets.token_hex(6)}" for _ in range(self._groups)]
        wanted = [name for name in names for _ in range(self._members)]
        if self._target.is_local_moldau:
            found = {name: (self._target.host, ports[owner_of(name, len(ports))]) for name in names}
        else:
            found = coordinators(self._target, names)
        opened = await connect_all([found[name] for name in wanted])
        members = [BenchMember(*item) for item in zip(wanted, opened, strict=True)]
        size = self._members
        return [members[at : at + size] for at in range(0, len(members), size)]

    async def _form(
        self, groups: list[list[BenchMember]], members: list[BenchMember]
    ) -> dict[str, float]:
        meter = CpuMeter(self._target.pids)
        began = time.perf_counter()
        complete = [asyncio.Event() for _ in groups]
        await together(
            member.form(len(group), event)
            for group, event in zip(groups, complete, strict=True)
            for member in group
        )
        _check(groups)
        await together(member.sync() for member in members)
        seconds = time.perf_counter() - began
        return {"form s": seconds, "form us/member": each(meter.stop()["worker"], len(members))}

    async def _rebalance(
        self, groups: list[list[BenchMember]], members: list[BenchMember]
    ) -> dict[str, float]:
        """Over and over: one rebalance of a small group is too short to measure."""
        meter = CpuMeter(self._target.pids)
        began = time.perf_counter()
        rounds: list[float] = []
        joining = 0.0
        while len(rounds) < MIN_REBALANCES or time.perf_counter() - began < self._seconds:
            start = time.perf_counter()
            await _rejoin(members)
            joining += time.perf_counter() - start
            _check(groups)
            await together(member.sync() for member in members)
            rounds.append(time.perf_counter() - start)
        cpu = meter.stop()
        served = len(members) * len(rounds)
        seconds = statistics.median(rounds)
        return {
            "rebalance ms": seconds * 1000,
            "rebalance us/member": each(seconds, len(members)),
            "of it broker us": each(cpu["broker"], served),
            "of it worker us": each(cpu["worker"], served),
            "of it client us": each(cpu["client"], served),
            "joins/s": served / joining,
        }

    async def _heartbeats(self, members: list[BenchMember]) -> dict[str, float]:
        meter = CpuMeter(self._target.pids)
        began = time.perf_counter()
        for member in members:
            member.connection.start_repeating(member.heartbeat_frame(), HEARTBEAT_RESPONSE)
        await asyncio.sleep(self._seconds)
        count = sum(await together(member.connection.stop_repeating() for member in members))
        seconds = time.perf_counter() - began
        cpu = meter.stop()
        return {
            "heartbeats/s": count / seconds,
            "broker us/heartbeat": each(cpu["broker"], count),
            "worker us/heartbeat": each(cpu["worker"], count),
            "heartbeats/s of worker core": count / cpu["worker"] if cpu["worker"] else 0.0,
            "bare us/request": await self._bare(members[0].heartbeat_frame(), len(members)),
        }

    async def _bare(self, frame: bytes, count: int, size: int = len(HEARTBEAT_RESPONSE)) -> float:
        """CPU of a server that only responds."""
        connections: list[MemberConnection] = []
        with echo_server(size) as (address, pid):
            try:
                connections = await connect_all([address] * count)
                before = cpu_seconds(pid)
                for connection in connections:
                    connection.start_repeating(frame, bytes(size))
                await asyncio.sleep(self._seconds)
                requests = sum(
                    await together(connection.stop_repeating() for connection in connections)
                )
                return each(cpu_seconds(pid) - before, requests)
            finally:
                for connection in connections:
                    connection.close()


async def together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    async with asyncio.timeout(TIMEOUT_S):
        return await asyncio.gather(*work)


async def connect_all(addresses: Sequence[tuple[str, int]]) -> list[MemberConnection]:
    at_once = asyncio.Semaphore(MAX_CONNECTING)

    async def connect(address: tuple[str, int]) -> MemberConnection:
        async with at_once:
            return await open_connection(MemberConnection, address)

    return await together(connect(address) for address in addresses)


async def _rejoin(members: list[BenchMember]) -> None:
    """Leaders first, which begins a rebalance; the others learn of it by heartbeat."""
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


def _check(groups: list[list[BenchMember]]) -> None:
    for group in groups:
        if len({member.generation for member in group}) != 1:
            raise RequestFailed("members of one group are in several generations")


def each(seconds: float, count: int) -> float:
    return seconds / max(count, 1) * 1e6


def _protocol(name: str) -> tuple[type[GroupsRun], RequestTypes]:
    if name == "classic":
        return GroupsRun, NEEDED
    # Imported when it is asked for: it stands on this module.
    from moldau.loadtest.bench.consumer_groups import NEEDED as CONSUMER_NEEDED
    from moldau.loadtest.bench.consumer_groups import ConsumerGroupsRun

    return ConsumerGroupsRun, [*NEEDED, *CONSUMER_NEEDED]


class Contender(NamedTuple):
    """A protocol of a broker: measured in turn with the others."""

    label: str  # empty: the only one
    kind: type[GroupsRun]
    target: Target
    ports: list[int]  # of its workers, by index


@contextmanager
def _contenders(arguments: argparse.Namespace) -> Iterator[list[Contender]]:
    protocols = {name: _protocol(name) for name in _protocols(arguments)}
    needed = [request for _, requests in protocols.values() for request in requests]
    with ExitStack() as stack:
        targets = {"": stack.enter_context(broker_under_test(arguments, needed))}
        if arguments.beside:
            beside = running(arguments.beside, arguments.beside_pid or ())
            await_ready(beside, needed)
            targets[arguments.beside] = beside
        found = []
        for where, target in targets.items():
            with Client(target.address) as admin:
                ports = [port for _, port in admin.brokers()]
            for name, (kind, _) in protocols.items():
                label = "".join(
                    f", {word}" for word in (name if len(protocols) > 1 else "", where) if word
                )
                found.append(Contender(label, kind, target, ports))
        yield found


def _protocols(arguments: argparse.Namespace) -> list[str]:
    return ["classic", "consumer"] if arguments.protocol == "both" else [arguments.protocol]


def _run(arguments: argparse.Namespace, advance: Advance) -> Rows:
    sizes = [(members, arguments.groups) for members in arguments.members or []] or GROUPS
    rows: Rows = []
    with _contenders(arguments) as contenders:
        for members, groups in sizes:
            runs = [one.kind(one.target, members, groups, arguments.seconds) for one in contenders]
            turns: list[list[Figures]] = [[] for _ in runs]
            for _ in range(arguments.repeat):
                for run, one, mine in zip(runs, contenders, turns, strict=True):
                    mine.append(uvloop.run(run.measure(one.ports)))
                    advance()
            for run, one, mine in zip(runs, contenders, turns, strict=True):
                figures = summaries(mine)
                if figures.get("KB/member"):  # later runs reuse the memory of the first one
                    figures["KB/member"] = summary([figures["KB/member"]["max"]])
                rows.append({"run": run.name + one.label, **figures})
    columns = dict.fromkeys(key for row in rows for key in (*row, "KB/member"))
    return [{key: row.get(key) for key in columns} for row in rows]


def _rounds(arguments: argparse.Namespace) -> int:
    contenders = len(_protocols(arguments)) * (2 if arguments.beside else 1)
    repeat: int = arguments.repeat
    return len(arguments.members or GROUPS) * repeat * contenders


BENCHMARK = Benchmark(
    name="groups",
    summary="groups of 10, 100 and 1,000 members, and 2,000 groups: form, rebalance, heartbeat",
    baseline="heartbeats to a bare uvloop server",
    run=_run,
    rounds=_rounds,
    any_broker=True,
    small={"members": [10, 100]},
)
