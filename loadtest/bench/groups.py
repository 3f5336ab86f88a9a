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
from typing import Any, TypeVar

from broker.placement import owner_of
from broker.wire.frame import LENGTH
from loadtest.bench.harness.client import RequestFailed
from loadtest.bench.harness.coordinator_requests import coordinators
from loadtest.bench.harness.group_members import BenchMember, Link
from loadtest.bench.harness.measure import CpuMeter, cpu_seconds, resident_bytes
from loadtest.bench.harness.target import Target

PATIENCE_S = 120.0
CONNECTING = 200  # at once
LEAST_ROUNDS = 3  # of rebalances
HEARTBEAT_ANSWER = LENGTH.pack(1) + bytes(8)  # correlation id 1, no tags, no delay, no error
# Figure -> whose CPU it is: not known when those processes are not.
OF_PROCESSES = {
    "form us/member": "worker",
    "of it broker us": "broker",
    "of it worker us": "worker",
    "broker us/heartbeat": "broker",
    "worker us/heartbeat": "worker",
    "heartbeats/s of worker core": "worker",
    "broker MB": "broker",
}
LEAST_MEMBERS_FOR_MEMORY = 100  # fewer disappear in what the process takes anyway

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
            figures["broker MB"] = resident_bytes(self._target.broker_pids) / 1e6
            for name, role in OF_PROCESSES.items():
                if not self._target.pids[role]:
                    figures[name] = None
            if self._target.worker_pids and len(members) >= LEAST_MEMBERS_FOR_MEMORY:
                figures["KB/member"] = grown / len(members) / 1024
            await together(member.leave() for member in members)
        finally:
            for member in members:
                member.link.close()
        return figures

    async def _connect(self, ports: Sequence[int]) -> list[list[BenchMember]]:
        names = [f"bench-{secrets.token_hex(6)}" for _ in range(self._groups)]
        wanted = [name for name in names for _ in range(self._members)]
        if self._target.is_ours:
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
        complete = [asyncio.Event() for _ in teams]
        await together(
            member.form(len(team), event)
            for team, event in zip(teams, complete, strict=True)
            for member in team
        )
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
            "of it broker us": _each(cpu["broker"], served),
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
        cpu = meter.stop()
        return {
            "heartbeats/s": count / seconds,
            "broker us/heartbeat": _each(cpu["broker"], count),
            "worker us/heartbeat": _each(cpu["worker"], count),
            "heartbeats/s of worker core": count / cpu["worker"] if cpu["worker"] else 0.0,
            "bare us/request": await self._bare(members[0].heartbeat_frame(), len(members)),
        }

    async def _bare(self, frame: bytes, connections: int) -> float:
        """CPU of a server that only answers."""
        size = str(len(HEARTBEAT_ANSWER))
        server = subprocess.Popen(  # noqa: ASYNC220 (nothing else runs meanwhile)
            [sys.executable, "-m", "loadtest.bench.harness.echo_server", size],
            stdout=subprocess.PIPE,
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
    try:
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as everybody:
            for member in members:
                if member.is_leader:
                    everybody.create_task(member.join())
            await asyncio.sleep(0)  # their requests are on the way
            for member in members:
                if not member.is_leader:
                    everybody.create_task(member.follow())
    except ExceptionGroup as faults:
        raise faults.exceptions[0] from None


def _check(teams: list[list[BenchMember]]) -> None:
    for team in teams:
        if len({member.generation for member in team}) != 1:
            raise RequestFailed("members of one group are in several generations")


def _each(seconds: float, count: int) -> float:
    return seconds / max(count, 1) * 1e6
