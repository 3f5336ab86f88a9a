"""The groups benchmark: raw members of either protocol on connections of their own, over uvloop.

A run forms groups, makes them rebalance again and again, then every member sends heartbeats in a
closed loop. Forming a classic group includes the broker's initial rebalance delay; a rebalance does
not. All members live in one Python process, whose own work is most of the time of a rebalance here,
so its CPU and the worker's are shown apart. Baseline of the heartbeats: a bare uvloop server that
answers the same frames over as many connections.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import uvloop

from moldau.broker.placement import owner_of
from moldau.broker.wire.messages.find_coordinator import FindCoordinatorRequest
from moldau.broker.wire.messages.metadata import MetadataRequest
from moldau.loadtest.bench.harness.benchmark import Advance, Benchmark, Rows
from moldau.loadtest.bench.harness.client import Client
from moldau.loadtest.bench.harness.consumer_members import ConsumerGroups
from moldau.loadtest.bench.harness.coordinator_requests import coordinators
from moldau.loadtest.bench.harness.echo_server import echo_server
from moldau.loadtest.bench.harness.figures import Figures, summaries, summary
from moldau.loadtest.bench.harness.group_members import (
    ClassicGroups,
    GroupMember,
    Groups,
    MemberConnection,
    together,
)
from moldau.loadtest.bench.harness.measure import CpuMeter, cpu_seconds, resident_bytes
from moldau.loadtest.bench.harness.requests import RequestTypes
from moldau.loadtest.bench.harness.secured import open_connection
from moldau.loadtest.bench.harness.target import Target, await_ready, broker_under_test, running

GROUPS = [(10, 1), (100, 1), (1000, 1), (2, 2000)]  # members of a group, groups
MAX_CONNECTING = 200  # connections that are being opened at once
MIN_REBALANCES = 3
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

NEEDED: RequestTypes = [MetadataRequest, FindCoordinatorRequest]
PROTOCOLS: dict[str, type[Groups]] = {"classic": ClassicGroups, "consumer": ConsumerGroups}


class GroupsRun:
    """One measurement: `groups` groups of `members` members."""

    def __init__(
        self,
        target: Target,
        members: int,
        groups: int,
        seconds: float,
        protocol: type[Groups] = ClassicGroups,
    ) -> None:
        self._target = target
        self._members, self._groups, self._seconds = members, groups, seconds
        self._protocol = protocol

    @property
    def name(self) -> str:
        word = "group" if self._groups == 1 else "groups"
        return f"{self._groups:,} {word} of {self._members:,}"

    async def measure(self, ports: Sequence[int]) -> Figures:
        """`ports` are the workers', by index. Figures about unknown processes are None."""
        names = [f"bench-{secrets.token_hex(6)}" for _ in range(self._groups)]
        groups = self._protocol()
        with groups.prepared(self._target, names, self._members):
            memory = resident_bytes(self._target.worker_pids)
            await self._connect(groups, names, ports)
            members = groups.members
            try:
                figures: Figures = {**await self._form(groups)}
                grown = resident_bytes(self._target.worker_pids) - memory
                figures |= await self._rebalance(groups)
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

    async def _connect(self, groups: Groups, names: Sequence[str], ports: Sequence[int]) -> None:
        if self._target.is_local_moldau:
            found = {name: (self._target.host, ports[owner_of(name, len(ports))]) for name in names}
        else:
            found = coordinators(self._target, names)
        size = self._members
        opened = await connect_all([found[name] for name in names for _ in range(size)])
        for at, name in enumerate(names):
            groups.add(name, opened[at * size : (at + 1) * size])

    async def _form(self, groups: Groups) -> Figures:
        meter = CpuMeter(self._target.pids)
        began = time.perf_counter()
        more = await groups.form()
        seconds = time.perf_counter() - began
        cpu = meter.stop()["worker"]
        return {"form s": seconds, "form us/member": each(cpu, len(groups.members)), **more}

    async def _rebalance(self, groups: Groups) -> dict[str, float]:
        """Over and over: one rebalance of a small group is too short to measure."""
        meter = CpuMeter(self._target.pids)
        began = time.perf_counter()
        rounds: list[float] = []
        joining = 0.0
        while len(rounds) < MIN_REBALANCES or time.perf_counter() - began < self._seconds:
            start = time.perf_counter()
            joining += await groups.rebalance()
            rounds.append(time.perf_counter() - start)
        cpu = meter.stop()
        count = len(groups.members)
        served = count * len(rounds)
        seconds = statistics.median(rounds)
        return {
            "rebalance ms": seconds * 1000,
            "rebalance us/member": each(seconds, count),
            "of it broker us": each(cpu["broker"], served),
            "of it worker us": each(cpu["worker"], served),
            "of it client us": each(cpu["client"], served),
            **({"joins/s": served / joining} if joining else {}),
        }

    async def _heartbeats(self, members: Sequence[GroupMember]) -> dict[str, float]:
        meter = CpuMeter(self._target.pids)
        began = time.perf_counter()
        for member in members:
            frame, expected = member.heartbeat_frame(), member.heartbeat_response()
            member.connection.start_repeating(frame, expected)
        await asyncio.sleep(self._seconds)
        count = sum(await together(member.connection.stop_repeating() for member in members))
        seconds = time.perf_counter() - began
        cpu = meter.stop()
        return {
            "heartbeats/s": count / seconds,
            "broker us/heartbeat": each(cpu["broker"], count),
            "worker us/heartbeat": each(cpu["worker"], count),
            "heartbeats/s of worker core": count / cpu["worker"] if cpu["worker"] else 0.0,
            "bare us/request": await self._bare(members[0], len(members)),
        }

    async def _bare(self, member: GroupMember, count: int) -> float:
        """CPU of a server that only responds."""
        frame, size = member.heartbeat_frame(), len(member.heartbeat_response())
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


async def connect_all(addresses: Sequence[tuple[str, int]]) -> list[MemberConnection]:
    at_once = asyncio.Semaphore(MAX_CONNECTING)

    async def connect(address: tuple[str, int]) -> MemberConnection:
        async with at_once:
            return await open_connection(MemberConnection, address)

    return await together(connect(address) for address in addresses)


def each(seconds: float, count: int) -> float:
    return seconds / max(count, 1) * 1e6


class Contender(NamedTuple):
    """A protocol of a broker: measured in turn with the others."""

    label: str  # empty: the only one
    protocol: type[Groups]
    target: Target
    ports: list[int]  # of its workers, by index


@contextmanager
def _contenders(arguments: argparse.Namespace) -> Iterator[list[Contender]]:
    protocols = {name: PROTOCOLS[name] for name in _protocols(arguments)}
    needed = [*NEEDED, *(request for one in protocols.values() for request in one.needed)]
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
            for name, protocol in protocols.items():
                label = "".join(
                    f", {word}" for word in (name if len(protocols) > 1 else "", where) if word
                )
                found.append(Contender(label, protocol, target, ports))
        yield found


def _protocols(arguments: argparse.Namespace) -> list[str]:
    return list(PROTOCOLS) if arguments.protocol == "both" else [arguments.protocol]


def _run(arguments: argparse.Namespace, advance: Advance) -> Rows:
    sizes = [(members, arguments.groups) for members in arguments.members or []] or GROUPS
    rows: Rows = []
    with _contenders(arguments) as contenders:
        for members, groups in sizes:
            runs = [
                GroupsRun(one.target, members, groups, arguments.seconds, one.protocol)
                for one in contenders
            ]
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
