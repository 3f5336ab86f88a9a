"""The scaling benchmark: the coordinator path of brokers with 1, 2 and 4 workers, side by side.

Workers share nothing, so what a request costs must not depend on how many there are; how many
requests pass in a second does, as long as there are cores for them (the client takes one here).
Each worker gets as many connections as one alone does: what a worker finds to do in one turn of its
event loop sets the price of a request, and must not depend on how many others there are. The
requests are those of coordinator_requests.py; each kind goes directly to the workers, and through
the router.
"""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Iterator

from loadtest.bench.harness.client import Client
from loadtest.bench.harness.coordinator_requests import (
    check_commit,
    commit,
    find,
    groups_of,
    heartbeat,
    load_of,
    workers_of,
)
from loadtest.bench.harness.replay import Totals
from loadtest.bench.harness.target import Target
from loadtest.bench.produce import Load

WORKERS = [1, 2, 4]


class ScalingBench:
    """One number of workers."""

    baselines: dict[str, str] = {}  # noqa: RUF012
    roles = ("worker", "worker kernel", "router", "router kernel", "store", "client")

    def __init__(self, target: Target, arguments: argparse.Namespace, workers: int) -> None:
        self._target = target
        self._arguments = arguments
        self._topic = f"bench-{secrets.token_hex(4)}"
        self.pids = target.pids
        self.size = workers

    def __enter__(self) -> ScalingBench:
        groups = groups_of(self.size, self.size * self._arguments.connections)
        with Client(self._target.host, self._target.port) as client:
            client.create_topic(self._topic, 1)
            addresses = workers_of(client)
            for group in groups:
                check_commit(client, group, self._topic)
        self._where = [addresses[number % len(addresses)] for number in range(len(groups))]
        self._frames = {
            "heartbeat": [heartbeat(group) for group in groups],
            "commit": [commit(group, self._topic) for group in groups],
            "find": [find(group) for group in groups],
        }
        return self

    def __exit__(self, *exc: object) -> None:
        pass  # the broker is ours, and gone in a moment

    def bytes_of(self, totals: Totals) -> int:
        return totals.received

    def loads(self) -> Iterator[tuple[str, Load]]:
        router = (self._target.host, self._target.port)
        in_flight, seconds = self._arguments.in_flight, self._arguments.seconds
        for what, frames in self._frames.items():
            direct = list(zip(frames, self._where, strict=True))
            yield f"{what}, direct", load_of(direct, in_flight, seconds)
            routed = [(frame, router) for frame in frames]
            yield f"{what}, routed", load_of(routed, in_flight, seconds)
