"""The table of benchmarks. `moldau bench --help`, `all` and the README's list follow from it."""

from __future__ import annotations

from moldau.loadtest.bench import (
    catchup,
    connections,
    fetch,
    groups,
    growth,
    latency,
    native,
    produce,
    router,
    scaling,
    security,
    transactions,
    wire,
)
from moldau.loadtest.bench.harness.benchmark import Benchmark

BENCHMARKS: dict[str, Benchmark] = {
    module.BENCHMARK.name: module.BENCHMARK
    for module in (
        produce,
        fetch,
        catchup,
        latency,
        groups,
        transactions,
        connections,
        router,
        scaling,
        security,
        native,
        growth,
        wire,
    )
}
