"""The description of a benchmark. loadtest/bench/benchmarks.py lists all of them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Row = dict[str, Any]  # figures by name: {"median", "min", "max"}; None where they are not known
Rows = list[Row]
Advance = Callable[[], None]  # called once for each round


def _as_it_is(row: Row) -> Row:
    return row


def _no_files(rows: Rows, arguments: argparse.Namespace) -> list[str]:
    return []


class Benchmark(NamedTuple):
    name: str
    summary: str  # one line, for --help and the README
    baseline: str  # measured in the same run; empty: none
    run: Callable[[argparse.Namespace, Advance], Rows]
    rounds: Callable[[argparse.Namespace], int]  # how often a run calls `advance`
    any_broker: bool = False  # runs against every Kafka broker: part of `all --bootstrap`
    in_all: bool = True
    small: Mapping[str, Any] = {}  # options that `all` sets
    shown: Callable[[Row], Row] = _as_it_is  # a row as the table shows it
    save: Callable[[Rows, argparse.Namespace], list[str]] = _no_files  # writes files, names them
