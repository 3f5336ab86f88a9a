"""The connections benchmark: what an idle connection costs, and what requests cost among many.

Each of `count` connections has sent one request. Then a few of them send heartbeats in a closed
loop while the others are idle, then all do: a server whose work grows with the number of
connections shows it in the CPU of a request. Directly to a worker, through the router (other
brokers: directly only), and, as the baseline, to a bare uvloop server. Memory is what the processes
have grown by since before the first connection of the benchmark.
"""

from __future__ import annotations

import argparse
import asyncio
import time

import uvloop

from moldau.broker.wire.messages.find_coordinator import FindCoordinatorRequest
from moldau.broker.wire.messages.heartbeat import HeartbeatRequest
from moldau.broker.wire.messages.metadata import MetadataRequest
from moldau.loadtest.bench.harness.benchmark import Advance, Benchmark, Rows
from moldau.loadtest.bench.harness.client import Address, Client
from moldau.loadtest.bench.harness.coordinator_requests import (
    await_coordinator,
    coordinators,
    heartbeat,
    new_groups,
)
from moldau.loadtest.bench.harness.echo_server import echo_server
from moldau.loadtest.bench.harness.figures import Figures, summaries
from moldau.loadtest.bench.harness.measure import CpuMeter, resident_bytes
from moldau.loadtest.bench.harness.replay import Replayer
from moldau.loadtest.bench.harness.requests import RequestTypes
from moldau.loadtest.bench.harness.secured import open_connection
from moldau.loadtest.bench.harness.target import Target, broker_under_test

COUNTS = [1, 10, 100, 1000, 5000]
ACTIVE = 8
MAX_CONNECTING = 200  # connections that are being opened at once
MIN_FOR_MEMORY = 100  # the memory of fewer is lost in that of the process
HEARTBEAT_RESPONSE_BYTES = 12
TIMEOUT_S = 60.0
DIRECT, ROUTED, BARE = "direct", "routed", "bare uvloop"

Pids = dict[str, list[int]]


class HeartbeatConnection(Replayer):
    """One heartbeat at a time, from `start` to `finish`."""

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
    """One way to the broker, for any number of connections."""

    def __init__(self, address: Address, frame: bytes, pids: Pids, before: dict[str, int]) -> None:
        self._address = address
        self._frame = frame
        self._pids = pids
        self._before = before

    async def measure(self, count: int, seconds: float) -> Figures:
        connections = await self._open(count)
        try:
            figures: Figures = {
                f"{role} KB/connection": _growth(pids, self._before[role], count)
                for role, pids in self._pids.items()
            }
            figures |= await self._load(connections[:ACTIVE], seconds, f"{ACTIVE} active")
            figures |= await self._load(connections, seconds, "all active")
        finally:
            for connection in connections:
                connection.over = True
                connection.close()
        return figures

    async def _open(self, count: int) -> list[HeartbeatConnection]:
        at_once = asyncio.Semaphore(MAX_CONNECTING)

        async def connect() -> HeartbeatConnection:
            async with at_once:
                connection = await open_connection(
                    lambda: HeartbeatConnection(self._frame), self._address
                )
                connection.start()
                await connection.finish()
            return connection

        async with asyncio.timeout(TIMEOUT_S):
            return list(await asyncio.gather(*(connect() for _ in range(count))))

    async def _load(
        self, connections: list[HeartbeatConnection], seconds: float, name: str
    ) -> Figures:
        meter = CpuMeter(self._pids)
        began = time.perf_counter()
        for connection in connections:
            connection.start()
        await asyncio.sleep(seconds)
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.gather(*(connection.finish() for connection in connections))
        elapsed = time.perf_counter() - began
        used = meter.stop()
        requests = sum(connection.requests for connection in connections)
        latencies = sorted(value for connection in connections for value in connection.latencies)
        figures: Figures = {
            f"{role} us/req, {name}": used[role] / requests * 1e6 if pids else None
            for role, pids in self._pids.items()
        }
        figures[f"requests/s, {name}"] = requests / elapsed
        figures[f"p99 ms, {name}"] = latencies[int(len(latencies) * 0.99)] * 1e3
        return figures


def _growth(pids: list[int], before: int, count: int) -> float | None:
    if not pids or count < MIN_FOR_MEMORY:
        return None
    return (resident_bytes(pids) - before) / count / 1024


def _new_group(target: Target) -> tuple[str, Address]:
    """A new group's id and its coordinator: of a Moldau the first worker."""
    if target.is_local_moldau:
        with Client(target.address) as client:
            workers = client.brokers()
        (group,) = new_groups(len(workers), 1)
        return group, workers[0]
    (group,) = new_groups(1, 1)
    coordinator = coordinators(target, [group])[group]
    with Client(coordinator) as client:
        await_coordinator(client, group)
    return group, coordinator


def measure(
    target: Target,
    counts: list[int],
    seconds: float,
    repeat: int,
    advance: Advance,
    ways: tuple[str, ...] = (BARE, DIRECT, ROUTED),
) -> Rows:
    group, coordinator = _new_group(target)
    frame = heartbeat(group)
    if not target.router_pids:
        ways = tuple(way for way in ways if way != ROUTED)
    series: dict[tuple[int, str], list[Figures]] = {}
    with echo_server(HEARTBEAT_RESPONSE_BYTES) as (echo, echo_pid):
        behind = {role: target.pids[role] for role in ("broker", "worker", "router")}
        every: dict[str, tuple[Address, Pids]] = {
            BARE: (echo, {"broker": [echo_pid], "worker": [echo_pid], "router": []}),
            DIRECT: (coordinator, {**behind, "router": []}),
            ROUTED: (target.address, behind),
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
                    series.setdefault((count, way), []).append(figures)
                advance()
    return [
        {"connections": count, "run": way, **summaries(turns)}
        for (count, way), turns in series.items()
    ]


def _run(arguments: argparse.Namespace, advance: Advance) -> Rows:
    needed: RequestTypes = [MetadataRequest, FindCoordinatorRequest, HeartbeatRequest]
    with broker_under_test(arguments, needed) as target:
        counts = arguments.count or COUNTS
        return measure(target, counts, arguments.seconds, arguments.repeat, advance)


BENCHMARK = Benchmark(
    name="connections",
    summary="1 to 5,000 connections: memory of each, CPU of a request among them",
    baseline="a bare uvloop server",
    run=_run,
    rounds=lambda arguments: len(arguments.count or COUNTS) * arguments.repeat,
    any_broker=True,
    small={"count": [10, 1000]},
)
