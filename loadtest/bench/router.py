"""The router benchmark: the same small requests directly to the workers, and through the router.

heartbeat  the pure coordinator path: of a member nobody knows, so the store is not asked
produce    one small batch per request, of one partition

Between the two stands a bare forwarder: a uvloop process that passes the same bytes on to the same
unix sockets and looks at nothing. Its CPU, shown in the router's column, is what two reads and two
writes cost here; what the router takes beyond it is the router's.
"""

from __future__ import annotations

import argparse
import secrets
import subprocess
import sys
from collections.abc import Iterator, Sequence

from loadtest.bench.harness.client import Client
from loadtest.bench.harness.coordinator_requests import (
    Connection,
    groups_of,
    heartbeat,
    load_of,
    workers_of,
)
from loadtest.bench.harness.replay import Totals
from loadtest.bench.harness.target import Target, TargetError
from loadtest.bench.produce import Load, make_batch, produce_frame
from ops.client import Address

DIRECT, BARE, ROUTED = "direct", "bare forwarder", "routed"
REQUESTS = ("heartbeat", "produce")


class RouterBench:
    """Requests of one size, each way in turn: direct is the baseline of the others."""

    baselines = {  # noqa: RUF012
        f"{what}, {way}": f"{what}, {DIRECT}" for what in REQUESTS for way in (BARE, ROUTED)
    }
    roles = ("router", "router kernel", "worker", "store", "client")

    def __init__(self, target: Target, arguments: argparse.Namespace, size: int) -> None:
        self._target = target
        self._arguments = arguments
        self._topic = f"bench-{secrets.token_hex(4)}"
        self._batch = bytes(make_batch(size))
        self._forwarders: list[subprocess.Popen[bytes]] = []
        self._bare: dict[Address, Address] = {}  # a worker's address -> its forwarder's
        self.size = size

    def __enter__(self) -> RouterBench:
        with Client(self._target.host, self._target.port) as client:
            self._workers = workers_of(client)
        if any(port == self._target.port for _, port in self._workers):
            raise TargetError("clients are told the address they know: there is no second hop")
        sockets = self._target.worker_sockets
        if len(self._workers) == len(sockets):  # else it is of another machine
            try:
                for address, path in zip(self._workers, sockets, strict=True):
                    self._bare[address] = self._forward(path)
            except BaseException:
                self._stop()
                raise
        return self

    def _forward(self, path: str) -> Address:
        command = [sys.executable, "-m", "loadtest.bench.harness.forwarder", path]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self._forwarders.append(process)
        assert process.stdout is not None
        return "127.0.0.1", int(process.stdout.readline())

    def __exit__(self, *exc: object) -> None:
        self._stop()

    def _stop(self) -> None:
        for process in self._forwarders:
            process.terminate()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

    @property
    def pids(self) -> dict[str, list[int]]:
        forwarders = [process.pid for process in self._forwarders]
        return {**self._target.pids, "router": self._target.router_pids + forwarders}

    def bytes_of(self, totals: Totals) -> int:
        return totals.received

    def loads(self) -> Iterator[tuple[str, Load]]:
        count, workers = self._arguments.connections, self._workers
        direct = [
            (heartbeat(group), workers[number % len(workers)])
            for number, group in enumerate(groups_of(len(workers), count))
        ]
        yield from self._ways("heartbeat", direct)
        with Client(self._target.host, self._target.port) as client:
            client.create_topic(self._topic, self._arguments.partitions)
            try:
                yield from self._ways("produce", self._produces(client))
            finally:
                client.delete_topic(self._topic)

    def _ways(self, what: str, direct: Sequence[Connection]) -> Iterator[tuple[str, Load]]:
        router = (self._target.host, self._target.port)
        ways = {DIRECT: direct, ROUTED: [(frame, router) for frame, _ in direct]}
        if self._bare:
            ways[BARE] = [(frame, self._bare[address]) for frame, address in direct]
        for way in (DIRECT, BARE, ROUTED):
            if way in ways:
                in_flight, seconds = self._arguments.in_flight, self._arguments.seconds
                yield f"{what}, {way}", load_of(ways[way], in_flight, seconds)

    def _produces(self, client: Client) -> list[Connection]:
        where = client.leaders(self._topic)
        partitions = [
            number % self._arguments.partitions for number in range(self._arguments.connections)
        ]
        return [
            (produce_frame(self._topic, partition, self._batch), where[partition])
            for partition in partitions
        ]
