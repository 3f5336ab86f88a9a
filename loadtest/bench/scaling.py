"""The scaling benchmark: the coordinator path of brokers with 1, 2 and 4 workers, side by side.

Workers share nothing, so the cost of a request must not depend on their number; how many requests
pass per second does, as long as there are cores for them (the client takes one here). Each worker
gets as many connections as one alone does: how much a worker finds to do in one iteration of its
event loop determines the cost of a request. The requests are those of coordinator_requests.py; each
kind goes directly to the workers, and through the router.

All brokers run at once and are measured in turn: a drift of the machine would look like scaling.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack

from moldau.loadtest.bench.harness.benchmark import Advance, Benchmark, Rows
from moldau.loadtest.bench.harness.client import Client, new_name
from moldau.loadtest.bench.harness.coordinator_requests import (
    check_commit,
    commit,
    find,
    heartbeat,
    load_of,
    new_groups,
)
from moldau.loadtest.bench.harness.target import TargetError, broker_options, own_broker
from moldau.loadtest.bench.harness.turns import Comparison, Load, Series, rows_of, take_turn

WORKERS = [1, 2, 4]
NOT_SHOWN = {"size", "of baseline", "MB/s", "GB/s of worker CPU"}


class ScalingComparison(Comparison):
    """A broker with `size` workers, removed afterwards with all that is in it."""

    roles = ("worker", "worker kernel", "router", "router kernel", "store", "client")

    def __enter__(self) -> ScalingComparison:
        topic = new_name()
        groups = new_groups(self.size, self.size * self._arguments.connections)
        with Client(self._target.address) as client:
            client.create_topic(topic, 1)
            workers = client.brokers()
            for group in groups:
                check_commit(client, group, topic)
        self._addresses = [workers[number % len(workers)] for number in range(len(groups))]
        self._frames = {
            "heartbeat": [heartbeat(group) for group in groups],
            "commit": [commit(group, topic) for group in groups],
            "find": [find(group) for group in groups],
        }
        return self

    def loads(self) -> Iterator[tuple[str, Load]]:
        in_flight, seconds = self._arguments.in_flight, self._arguments.seconds
        for what, frames in self._frames.items():
            direct = list(zip(frames, self._addresses, strict=True))
            yield f"{what}, direct", load_of(direct, in_flight, seconds)
            routed = [(frame, self._target.address) for frame in frames]
            yield f"{what}, routed", load_of(routed, in_flight, seconds)


def _run(arguments: argparse.Namespace, advance: Advance) -> Rows:
    if arguments.bootstrap:
        raise TargetError("scaling starts brokers of its own: leave out --bootstrap")
    with ExitStack() as stack:
        comparisons = []
        for workers in WORKERS:
            target = stack.enter_context(own_broker(workers, broker_options(arguments)))
            comparison = ScalingComparison(target, arguments, workers)
            comparisons.append(stack.enter_context(comparison))
        series: list[Series] = [{} for _ in comparisons]
        for _ in range(arguments.repeat):
            for comparison, turns in zip(comparisons, series, strict=True):
                take_turn(comparison, turns)
            advance()
    by_workers = [
        rows_of(comparison, turns) for comparison, turns in zip(comparisons, series, strict=True)
    ]
    return [
        {"workers": row["size"], **{key: row[key] for key in row if key not in NOT_SHOWN}}
        for of_one_kind in zip(*by_workers, strict=True)
        for row in of_one_kind
    ]


BENCHMARK = Benchmark(
    name="scaling",
    summary="heartbeats, commits and FindCoordinator with 1, 2 and 4 workers",
    baseline="the same with one worker",
    run=_run,
    rounds=lambda arguments: int(arguments.repeat),
)
