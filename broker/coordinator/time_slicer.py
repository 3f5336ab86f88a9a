"""Runs long computations in slices between other work of the event loop.

A thread would compete with the event loop for the interpreter, and a process would have to be sent
as much data as there is to compute. So a computation is a generator that yields often, and runs for
two milliseconds of each turn of the event loop. A small one ends in its first slice, within the
request that asked for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Generator
from time import perf_counter
from typing import Any, Generic, TypeVar

logger = logging.getLogger("moldau.coordinator")

SLICE_S = 0.002
T = TypeVar("T")


class Work(Generic[T]):
    """A computation. `done` gets its result, or None if it failed."""

    def __init__(
        self, what: str, steps: Generator[None, None, T], done: Callable[[T | None], None]
    ) -> None:
        self._what = what
        self._steps = steps
        self._done = done

    def run(self, until: float) -> bool:
        """Run until that time; returns whether it has ended."""
        result: T | None = None
        try:
            while perf_counter() < until:
                next(self._steps)
            return False
        except StopIteration as end:
            result = end.value
        except Exception:
            logger.exception("%s failed", self._what)
        self._done(result)
        return True


class TimeSlicer:
    """Gives one slice per turn, to one computation after the other."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Work[Any]] = deque()
        self._is_scheduled = False

    def start(self, work: Work[Any]) -> None:
        if work.run(perf_counter() + SLICE_S):
            return
        self._waiting.append(work)
        self._schedule()

    def _schedule(self) -> None:
        if self._waiting and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._is_scheduled = False
        work = self._waiting.popleft()
        try:
            if not work.run(perf_counter() + SLICE_S):
                self._waiting.append(work)  # behind the others
        finally:
            self._schedule()
