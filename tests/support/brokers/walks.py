"""The walk of a request: the modules of ours that run from the arrival of its frame to its reply.

    with running_broker(env=walks.environment(reports), …) as broker:
        walk = walks.walk(broker, reports, lambda: client.call(request))
        walks.hold(walk, at_most=27)

The length of a walk is how many files somebody has to open who reads what a request does, so tests
hold it. Timers of a broker run meanwhile: a walk is what several runs of the same request share.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tests.support.brokers.running import ROOT, Broker, wait_until

RUNS = 5
ROLES = ("worker", "router")
_TRACED = Path(__file__).parent / "traced"
OURS = ("broker", "router", "ops")
# The clock that measures how late the event loop is, and the loop of the HTTP process that looks
# whether it is to end: they tick during every walk.
TICKING = {"broker/metrics/loop_lag", "broker/metrics/histogram", "ops/http/process"}


def environment(reports: Path) -> dict[str, str]:
    """The environment of a broker whose walks are traced, into this directory."""
    return {
        "PYTHONPATH": f"{_TRACED}:{ROOT}",
        "WALKS_REPORTS": str(reports),
        "WALKS_ROOT": str(ROOT),
    }


def walk(
    broker: Broker,
    reports: Path,
    request: Callable[[], object],
    *,
    before: Callable[[], object] = lambda: None,
    runs: int = RUNS,
    roles: Sequence[str] = ROLES,
) -> list[str]:
    """Run a request several times; returns the modules that ran each time in processes of these
    roles, in the order in which the first run touched them. `before` is run before each, and not
    traced."""
    found = []
    for _ in range(runs):
        before()
        found.append(trace(broker, reports, request, roles))
    return [module for module in found[0] if all(module in other for other in found[1:])]


def trace(
    broker: Broker, reports: Path, request: Callable[[], object], roles: Sequence[str] = ROLES
) -> list[str]:
    """Run a request once; returns the modules that ran, in the order of their first touch."""
    pids = [pid for role in roles for pid in broker.pids(role)]
    _signal_all(pids, reports, "began")
    try:
        request()
    finally:
        _signal_all(pids, reports, "json")
    touched: dict[str, int] = {}
    for pid in pids:
        report = reports / f"{pid}.json"
        for file, at in json.loads(report.read_text()).items():
            if file.endswith(".py"):  # templates of pages are compiled too
                touched[file] = min(at, touched.get(file, at))
        report.unlink()
        (reports / f"{pid}.began").unlink()
    modules = [_module(file) for file in sorted(touched, key=touched.__getitem__)]
    return [one for one in modules if one.startswith(OURS) and one not in TICKING]


def hold(modules: Sequence[str], at_most: int) -> None:
    """Fail with the list if a walk has become longer."""
    listed = "\n".join(f"{number:3} {module}" for number, module in enumerate(modules, 1))
    assert len(modules) <= at_most, (
        f"{len(modules)} modules run, and at most {at_most} may; which are opened together can be "
        f"one, and which only pass something on can go:\n{listed}"
    )


def _signal_all(pids: Iterable[int], reports: Path, report: str) -> None:
    waiting = {pid: reports / f"{pid}.{report}" for pid in pids}
    for pid in waiting:
        os.kill(pid, signal.SIGUSR2)
    for pid, path in waiting.items():
        wait_until(path.exists, 30, f"process {pid} has {report}")


def _module(file: str) -> str:
    return Path(file).relative_to(ROOT).with_suffix("").as_posix()
