"""Broker and baseline in turn, so that whatever else the machine does affects both.

Reported are medians and ranges over the turns. What cannot be measured (another broker's processes,
unless --pid names them) is None.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import uvloop

from moldau.loadtest.bench.harness.benchmark import Advance, Rows
from moldau.loadtest.bench.harness.figures import Figures, summaries
from moldau.loadtest.bench.harness.measure import CpuMeter, megabytes
from moldau.loadtest.bench.harness.replay import Totals
from moldau.loadtest.bench.harness.target import Target

Load = Callable[[], Coroutine[Any, Any, Totals]]
Series = dict[str, list[Figures]]  # run -> its figures in each turn


class Comparison:
    """A broker and its baselines, at one size; a context manager that sets them up."""

    baselines: ClassVar[Mapping[str, str]] = {}  # run -> its baseline
    roles: ClassVar[Sequence[str]] = ("broker", "worker", "store", "client")

    def __init__(self, target: Target, arguments: argparse.Namespace, size: int) -> None:
        self._target = target
        self._arguments = arguments
        self.size = size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    @property
    def pids(self) -> dict[str, list[int]]:
        return self._target.pids

    def loads(self) -> Iterator[tuple[str, Load]]:
        """Each run's name and load; a load runs before the next one is asked for."""
        raise NotImplementedError

    def bytes_moved(self, totals: Totals) -> int:
        return totals.received


def compare_sizes(
    kind: type[Comparison],
    sizes: Sequence[int],
    target: Target,
    arguments: argparse.Namespace,
    advance: Advance,
) -> Rows:
    rows: Rows = []
    for size in sizes:
        series: Series = {}
        with kind(target, arguments, size) as comparison:
            for _ in range(arguments.repeat):
                take_turn(comparison, series)
                advance()
        rows += rows_of(comparison, series)
    return rows


def take_turn(comparison: Comparison, series: Series) -> None:
    """Each run of the comparison once."""
    for name, load in comparison.loads():
        pids = comparison.pids
        meter = CpuMeter(pids)
        totals: Totals = uvloop.run(load())
        used = meter.stop()
        # "worker kernel" is known if the worker is.
        cpu = {
            role: used[role] if pids[role.removesuffix(" kernel")] else None
            for role in comparison.roles
        }
        figures = _figures(totals, cpu, comparison.bytes_moved(totals))
        for role in ("broker", "worker", "store"):
            if role in comparison.roles:
                figures[f"{role} MB"] = megabytes(pids[role])
        series.setdefault(name, []).append(figures)


def rows_of(comparison: Comparison, series: Series) -> Rows:
    rows: Rows = []
    for name, turns in series.items():
        figures = summaries(turns)
        baseline = series.get(comparison.baselines.get(name, ""))
        ratio = None
        if baseline:
            ratio = figures["MB/s"]["median"] / summaries(baseline)["MB/s"]["median"]
        rows.append({"size": comparison.size, "run": name, **figures, "of baseline": ratio})
    return rows


def _figures(totals: Totals, cpu: dict[str, float | None], moved: int) -> Figures:
    figures: Figures = {
        "requests/s": totals.per_second,
        "MB/s": moved / totals.seconds / 1e6,
        "p50 ms": totals.percentile_ms(0.5),
        "p99 ms": totals.percentile_ms(0.99),
    }
    for role, seconds in cpu.items():
        each = None if seconds is None else seconds / max(totals.requests, 1) * 1e6
        figures[f"{role} us/req"] = each
    busy = cpu["worker"]
    figures["GB/s of worker CPU"] = moved / busy / 1e9 if busy else None
    if "broker" in cpu:
        busy = cpu["broker"]
        figures["MB/s of broker CPU"] = moved / busy / 1e6 if busy else None
    return figures
