"""The benchmark of connections: what one costs that only waits, and what requests cost among many.

Each of `count` connections has asked once. Then a few of them heartbeat in a closed loop while the
others wait, then all do: a server whose work grows with the number of connections shows it in the
CPU of a request. Directly to a worker, through the router (a broker of others is asked directly
only), and, as the baseline, to a bare uvloop server. Memory is what the processes grew by since
before the first connection of the benchmark.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvloop

from loadtest.bench.harness.client import Client
from loadtest.bench.harness.coordinator_requests import (
    await_coordinator,
    coordinators,
    groups_of,
    heartbeat,
    workers_of,
)
from loadtest.bench.harness.measure import CpuMeter, resident_bytes, summary
from loadtest.bench.harness.replay import Replayer
from loadtest.bench.harness.target import Target

COUNTS = [1, 10, 100, 1000, 5000]
ACTIVE = 8
CONNECTING = 200  # at once
LEAST_FOR_MEMORY = 100  # fewer disappear in what a process takes anyway
HEARTBEAT_ANSWER_BYTES = 12
PATIENCE_S = 60.0
DIRECT, ROUTED, BARE = "direct", "routed", "bare uvloop"

Address = tuple[str, int]
Pids = dict[str, list[int]]
Figures = dict[str, float | None]


class Caller(Replayer):
    """One request at a time, for as long as it is told to."""

    def __init__(self, frame: bytes) -> None:
        super().__init__([frame], 1)

    def start(self) -> None:
        self.over = False
        self.requests = 0
        self.latencies = []
        self.done = asyncio.get_running_loop().create_future()
        self.begin()

    def finish(self) -> asyncio.Future[None]:
        self.over = True
        return self.done

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over:
            super().connection_lost(exc)


class ConnectionsRun:
    """One number of connections, one way."""

    def __init__(self, address: Address, frame: bytes, pids: Pids, before: dict[str, int]) -> None:
        self._address = address
        self._frame = frame
        self._pids = pids
        self._before = before

    async def measure(self, count: int, seconds: float) -> Figures:
        callers = await self._open(count)
        try:
            figures: Figures = {
                f"{role} KB/connection": _growth(pids, self._before[role], count)
                for role, pids in self._pids.items()
            }
            few = callers[:ACTIVE]
            figures |= await self._load(few, seconds, f"{ACTIVE} active")
            figures |= await self._load(callers, seconds, "all active")
        finally:
            for caller in callers:
                caller.over = True
                caller.close()
        return figures

    async def _open(self, count: int) -> list[Caller]:
        loop = asyncio.get_running_loop()
        at_once = asyncio.Semaphore(CONNECTING)

        async def connect() -> Caller:
            async with at_once:
                _, caller = await loop.create_connection(
                    lambda: Caller(self._frame), *self._address
                )
                caller.start()
                await caller.finish()
            return caller

        async with asyncio.timeout(PATIENCE_S):
            return list(await asyncio.gather(*(connect() for _ in range(count))))

    async def _load(self, callers: list[Caller], seconds: float, name: str) -> Figures:
        meter = CpuMeter(self._pids)
        began = time.perf_counter()
        for caller in callers:
            caller.start()
        await asyncio.sleep(seconds)
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(caller.finish() for caller in callers))
        elapsed = time.perf_counter() - began
        used = meter.stop()
        requests = sum(caller.requests for caller in callers)
        latencies = sorted(value for caller in callers for value in caller.latencies)
        figures: Figures = {
            f"{role} us/req, {name}": used[role] / requests * 1e6 if pids else None
            for role, pids in self._pids.items()
        }
        figures[f"requests/s, {name}"] = requests / elapsed
        figures[f"p99 ms, {name}"] = latencies[int(len(latencies) * 0.99)] * 1e3
        return figures


def _growth(pids: list[int], before: int, count: int) -> float | None:
    if not pids or count < LEAST_FOR_MEMORY:
        return None
    return (resident_bytes(pids) - before) / count / 1024


@contextmanager
def _bare_server() -> Iterator[tuple[Address, int]]:
    server = subprocess.Popen(
        [sys.executable, "-m", "loadtest.bench.harness.echo_server", str(HEARTBEAT_ANSWER_BYTES)],
        stdout=subprocess.PIPE,
    )
    assert server.stdout is not None
    try:
        yield ("127.0.0.1", int(server.stdout.readline())), server.pid
    finally:
        server.terminate()
        server.wait()
        server.stdout.close()


def _group_at_home(target: Target) -> tuple[str, Address]:
    """A new group's id, and who coordinates it: the first worker, if there are workers."""
    if target.is_ours:
        with Client(target.host, target.port) as client:
            workers = workers_of(client)
        (group,) = groups_of(len(workers), 1)
        return group, workers[0]
    (group,) = groups_of(1, 1)
    home = coordinators(target, [group])[group]
    with Client(*home) as client:
        await_coordinator(client, group)
    return group, home


def measure(
    target: Target,
    counts: list[int],
    seconds: float,
    repeat: int,
    advance: Callable[[], None],
    ways: tuple[str, ...] = (BARE, DIRECT, ROUTED),
) -> list[dict[str, Any]]:
    group, home = _group_at_home(target)
    frame = heartbeat(group)
    if not target.router_pids:
        ways = tuple(way for way in ways if way != ROUTED)  # there is one way in
    runs: dict[tuple[int, str], list[Figures]] = {}
    with _bare_server() as (echo, echo_pid):
        behind = {role: target.pids[role] for role in ("broker", "worker", "router")}
        every: dict[str, tuple[Address, Pids]] = {
            BARE: (echo, {"broker": [echo_pid], "worker": [echo_pid], "router": []}),
            DIRECT: (home, {**behind, "router": []}),
            ROUTED: ((target.host, target.port), behind),
        }
        before = {
            way: {role: resident_bytes(pids) for role, pids in every[way][1].items()}
            for way in ways
        }
        for count in counts:
            for _ in range(repeat):
                for way in ways:
                    address, pids = every[way]
                    run = ConnectionsRun(address, frame, pids, before[way])
                    figures = uvloop.run(run.measure(count, seconds))
                    runs.setdefault((count, way), []).append(figures)
                advance()
    return [
        {
            "connections": count,
            "run": way,
            **{key: summary([one[key] for one in many]) for key in many[0]},
        }
        for (count, way), many in runs.items()
    ]
