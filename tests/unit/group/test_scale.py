"""A round of a large group costs in proportion to its members: steps are counted, not timed."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

from tests.support.drivers.group_driver import GroupDriver

if TYPE_CHECKING:
    from _typeshed import TraceFunction

FEW, MANY = 30, 240


def steps(work: Callable[[], object]) -> int:
    """How many functions of the group are called, and how much they go through, by builtins too."""
    count = 0

    def profile(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        if event in ("call", "c_call") and "/broker/group/" in frame.f_code.co_filename:
            count += 1

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def lines(work: Callable[[], object]) -> int:
    """How many lines of the group are run: loops without calls count as well."""
    count = 0

    def trace(frame: FrameType, event: str, arg: object) -> "TraceFunction | None":
        nonlocal count
        if "/broker/group/" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def names(size: int) -> list[str]:
    return [f"m{number}" for number in range(size)]


def first_round(size: int) -> Callable[[], object]:
    g = GroupDriver()

    def work() -> None:
        for name in names(size):
            g.join_once(name, version=3)
        g.sleep(6_000)
        g.assert_state("CompletingRebalance", generation=1)

    return work


def sync_round(size: int) -> Callable[[], object]:
    g = GroupDriver()
    first_round_of(g, size)
    g.learn()
    g.learn = lambda: None  # type: ignore[method-assign]  # the driver reads all answers each time
    return lambda: g.sync_all(names(size))


def second_round(size: int) -> Callable[[], object]:
    g = GroupDriver()
    first_round_of(g, size)
    g.sync_all(names(size))
    g.assert_state("Stable")
    ordered = [g.leader(), *(name for name in names(size) if name != g.leader())]

    def work() -> None:
        for name in ordered:
            g.join_once(name)
        assert g.group.generation_id == 2

    return work


def everybody_leaves_at_once(size: int) -> Callable[[], object]:
    g = GroupDriver()
    first_round_of(g, size)
    g.learn()
    return lambda: g.leave(*names(size))


def first_round_of(g: GroupDriver, size: int) -> None:
    for name in names(size):
        g.join_once(name, version=3)
    g.sleep(6_000)


def test_rounds_are_linear_in_the_number_of_members() -> None:
    for round_of in (first_round, sync_round, second_round, everybody_leaves_at_once):
        for measure in (steps, lines):
            few, many = measure(round_of(FEW)), measure(round_of(MANY))
            assert few > FEW, f"{round_of.__name__}: nothing was measured"
            growth = (many / few) / (MANY / FEW)
            assert growth < 1.3, f"{round_of.__name__}: {few} and {many} {measure.__name__}"
