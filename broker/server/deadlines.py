"""Deadlines of requests, with one timer for all of them.

A timer per request would cost every request. One timer costs a sweep twice a second, and nothing
while no request waits.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

SWEEP_EVERY = 0.5  # seconds; the precision of deadlines


class Expiring(Protocol):
    deadline: float

    def time_out(self) -> None: ...


class Deadlines:
    def __init__(self) -> None:
        self._waiting: dict[Expiring, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, request: Expiring) -> None:
        self._waiting[request] = None
        if self._timer is None:
            self._arm()

    def remove(self, request: Expiring) -> None:
        self._waiting.pop(request, None)

    def __len__(self) -> int:
        return len(self._waiting)

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(SWEEP_EVERY, self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for request in [request for request in self._waiting if request.deadline <= now]:
            self.remove(request)
            request.time_out()
        if self._waiting and self._timer is None:
            self._arm()
