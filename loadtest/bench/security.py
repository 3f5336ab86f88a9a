"""The security benchmark: what TLS and logins cost, beside the same without them.

heartbeat  the smallest request, of an unknown member: the store is not asked
produce    one batch of `size` per request
connect    a connection, ApiVersions, and its end: plain, with a login (SCRAM), with TLS, with both

One broker with a listener for each; requests go directly to the workers. A client that connects
again and again knows the salted password, as a program with many connections should: the broker
is measured, not the client's PBKDF2.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

from moldau.broker.wire.messages.api_versions import ApiVersionsRequest
from moldau.loadtest.bench.harness.benchmark import Advance, Benchmark, Rows
from moldau.loadtest.bench.harness.client import Address, Client
from moldau.loadtest.bench.harness.coordinator_requests import heartbeat, load_of, new_groups
from moldau.loadtest.bench.harness.replay import Totals
from moldau.loadtest.bench.harness.request_connection import RequestConnection
from moldau.loadtest.bench.harness.secured import open_connection, security_in_use, using
from moldau.loadtest.bench.harness.target import Target, TargetError, broker_options, own_broker
from moldau.loadtest.bench.harness.turns import Comparison, Load, compare_sizes
from moldau.loadtest.bench.produce import make_batch, produce_frame
from moldau.ops.client import PLAINTEXT, Security

SIZES = [65536]
PLAIN, LOGIN, TLS, BOTH = "plain", "login", "TLS", "TLS and login"
PROTOCOLS = {PLAIN: "PLAINTEXT", LOGIN: "SASL_PLAINTEXT", TLS: "SSL", BOTH: "SASL_SSL"}
CONNECTING = 8  # at once


class SecurityComparison(Comparison):
    """Each way in turn; plain is the baseline of the others."""

    baselines = {  # noqa: RUF012
        f"{what}, {way}": f"{what}, {PLAIN}"
        for what in ("heartbeat", "produce", "connect")
        for way in (LOGIN, TLS, BOTH)
    }
    roles = ("broker", "worker", "store", "client")

    def __init__(self, target: Target, arguments: argparse.Namespace, size: int) -> None:
        super().__init__(target, arguments, size)
        self._batch = make_batch(size)
        admin = security_in_use()
        self._ways = {
            PLAIN: PLAINTEXT,
            LOGIN: Security(None, admin.sasl),
            TLS: Security(admin.tls),
            BOTH: admin,
        }

    def _worker(self, way: str, index: int = 0) -> Address:
        """Blocks of ports: each listener's router, then its workers."""
        block = 1 + self._arguments.workers
        return self._target.host, self._target.port + list(PROTOCOLS).index(way) * block + 1 + index

    def loads(self) -> Iterator[tuple[str, Load]]:
        arguments = self._arguments
        workers = arguments.workers
        groups = new_groups(workers, arguments.connections)
        for way in (PLAIN, TLS):
            requests = [
                (heartbeat(group), self._worker(way, number % workers))
                for number, group in enumerate(groups)
            ]
            yield f"heartbeat, {way}", self._with(way, load_of(requests, *self._pace()))
        with self._topic() as (topic, leaders):
            partitions = [number % arguments.partitions for number in range(arguments.connections)]
            for way in (PLAIN, TLS):
                requests = [
                    (produce_frame(topic, one, self._batch), self._worker(way, leaders[one]))
                    for one in partitions
                ]
                yield f"produce, {way}", self._with(way, load_of(requests, *self._pace()))
        for way in PROTOCOLS:
            yield f"connect, {way}", self._with(way, partial(self._connect, way))

    def bytes_moved(self, totals: Totals) -> int:
        return totals.requests * len(self._batch)  # of Produce requests; see _shown

    def _pace(self) -> tuple[int, float]:
        return self._arguments.in_flight, self._arguments.seconds

    @contextmanager
    def _topic(self) -> Iterator[tuple[str, dict[int, int]]]:
        """And the worker that leads each partition."""
        with (
            using(PLAINTEXT),
            Client(self._target.address) as client,
            client.temporary_topic(self._arguments.partitions) as topic,
        ):
            first = self._worker(PLAIN)[1]
            yield topic, {one: port - first for one, (_, port) in client.leaders(topic).items()}

    def _with(self, way: str, load: Callable[[], Coroutine[Any, Any, Totals]]) -> Load:
        async def run() -> Totals:
            with using(self._ways[way]):
                return await load()

        return run

    async def _connect(self, way: str) -> Totals:
        """Connections one after another, a few at once."""
        latencies: list[float] = []
        began = time.perf_counter()
        until = began + self._arguments.seconds

        async def again_and_again(number: int) -> None:
            address = self._worker(way, number % self._arguments.workers)
            while time.perf_counter() < until:
                start = time.perf_counter()
                async with _connected(address) as connection:
                    await connection.call(ApiVersionsRequest(), 0)
                latencies.append(time.perf_counter() - start)

        await asyncio.gather(*(again_and_again(number) for number in range(CONNECTING)))
        return Totals(len(latencies), 0, time.perf_counter() - began, sorted(latencies))


@asynccontextmanager
async def _connected(address: Address) -> AsyncIterator[RequestConnection]:
    connection = await open_connection(RequestConnection, address)
    try:
        yield connection
    finally:
        connection.close()


def _run(arguments: argparse.Namespace, advance: Advance) -> Rows:
    if arguments.bootstrap:
        raise TargetError("security starts a broker of its own: leave out --bootstrap")
    options = [*broker_options(arguments), "--secure"]
    env = {"MOLDAU_BROKER_SUPER_USERS": "User:ANONYMOUS"}
    with own_broker(arguments.workers, options, list(PROTOCOLS.values()), **env) as target:
        sizes = arguments.size or SIZES
        return compare_sizes(SecurityComparison, sizes, target, arguments, advance)


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """Heartbeats and connections move no bytes to speak of."""
    if row["run"].startswith("produce"):
        return row
    return {name: None if "B/s" in name else value for name, value in row.items()}


BENCHMARK = Benchmark(
    name="security",
    summary="heartbeats, Produce requests and connections with TLS and logins",
    baseline="the same without them, on another listener of the same broker",
    run=_run,
    rounds=lambda arguments: len(arguments.size or SIZES) * arguments.repeat,
    in_all=False,
    shown=_shown,
)
