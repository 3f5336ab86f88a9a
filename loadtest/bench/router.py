"""The router benchmark: the same small requests directly to the workers, and through the router.

heartbeat  the coordinator path alone: of an unknown member, so the store is not asked
produce    one small batch per request, of one partition

A third way is a bare forwarder: a uvloop process that passes the same bytes on to the same unix
sockets, unread. Its CPU, shown in the router's column, is what two reads and two writes cost here;
what the router takes beyond it is the router's own.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from moldau.loadtest.bench.harness.benchmark import Advance, Benchmark, Rows
from moldau.loadtest.bench.harness.client import Address, Client
from moldau.loadtest.bench.harness.coordinator_requests import (
    Addressed,
    heartbeat,
    load_of,
    new_groups,
)
from moldau.loadtest.bench.harness.forwarder import forwarder
from moldau.loadtest.bench.harness.target import Target, TargetError, broker_under_test
from moldau.loadtest.bench.harness.turns import Comparison, Load, compare_sizes
from moldau.loadtest.bench.produce import make_batch, produce_frame

SIZES = [1024]
DIRECT, BARE, ROUTED = "direct", "bare forwarder", "routed"
REQUESTS = ("heartbeat", "produce")


class RouterComparison(Comparison):
    """Requests of one size, each way in turn; direct is the baseline of the others."""

    baselines = {  # noqa: RUF012
        f"{what}, {way}": f"{what}, {DIRECT}" for what in REQUESTS for way in (BARE, ROUTED)
    }
    roles = ("router", "router kernel", "worker", "store", "client")

    def __init__(self, target: Target, arguments: argparse.Namespace, size: int) -> None:
        super().__init__(target, arguments, size)
        self._batch = make_batch(size)
        self._stack = ExitStack()
        self._forwarder_pids: list[int] = []
        self._forwarders: dict[Address, Address] = {}  # a worker's address -> its forwarder's

    def __enter__(self) -> RouterComparison:
        with Client(self._target.address) as client:
            self._workers = client.brokers()
        if any(port == self._target.port for _, port in self._workers):
            raise TargetError("the router itself is advertised: there is no second hop to compare")
        sockets = self._target.worker_sockets
        if len(self._workers) == len(sockets):  # else it is on another machine
            with ExitStack() as starting:
                for address, path in zip(self._workers, sockets, strict=True):
                    forwarded, pid = starting.enter_context(forwarder(path))
                    self._forwarders[address] = forwarded
                    self._forwarder_pids.append(pid)
                self._stack = starting.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    @property
    def pids(self) -> dict[str, list[int]]:
        routers = self._target.router_pids + self._forwarder_pids
        return {**self._target.pids, "router": routers}

    def loads(self) -> Iterator[tuple[str, Load]]:
        arguments, workers = self._arguments, self._workers
        groups = new_groups(len(workers), arguments.connections)
        heartbeats = [
            (heartbeat(group), workers[number % len(workers)])
            for number, group in enumerate(groups)
        ]
        yield from self._each_way("heartbeat", heartbeats)
        with (
            Client(self._target.address) as client,
            client.temporary_topic(arguments.partitions) as topic,
        ):
            leaders = client.leaders(topic)
            partitions = [number % arguments.partitions for number in range(arguments.connections)]
            produces = [
                (produce_frame(topic, partition, self._batch), leaders[partition])
                for partition in partitions
            ]
            yield from self._each_way("produce", produces)

    def _each_way(self, what: str, direct: Sequence[Addressed]) -> Iterator[tuple[str, Load]]:
        ways = {DIRECT: direct}
        if self._forwarders:
            ways[BARE] = [(frame, self._forwarders[address]) for frame, address in direct]
        ways[ROUTED] = [(frame, self._target.address) for frame, _ in direct]
        for way, requests in ways.items():
            load = load_of(requests, self._arguments.in_flight, self._arguments.seconds)
            yield f"{what}, {way}", load


def _run(arguments: argparse.Namespace, advance: Advance) -> Rows:
    with broker_under_test(arguments) as target:
        sizes = arguments.size or SIZES
        return compare_sizes(RouterComparison, sizes, target, arguments, advance)


BENCHMARK = Benchmark(
    name="router",
    summary="heartbeats and small Produce requests through the router",
    baseline="directly to the workers; through a bare forwarder",
    run=_run,
    rounds=lambda arguments: len(arguments.size or SIZES) * arguments.repeat,
)
