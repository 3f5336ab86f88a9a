"""How many bytes requests and replies may hold, and how long requests may wait.

Requests that have not arrived completely (`frames`) may take half of the budget, and leave that
much less for requests being served, which always have the other half.

All deadlines share one timer. A timer per request would cost every request; one timer costs a sweep
twice a second, and nothing while no request waits.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from moldau.broker.net.frame_memory import FrameMemory

MIN_REPLY = 1 << 16


class Waiter(Protocol):
    def ease(self) -> None: ...


class Budget:
    """Counts bytes, and notifies connections that wait for room."""

    def __init__(self, total: int, per_connection: int) -> None:
        self.total = total
        self.per_connection = per_connection
        self.used = 0  # unanswered requests
        self.held = 0  # replies being read from the store, or not read by their clients
        self.frames = FrameMemory(total // 2, self._room_for_frames, self._frames_hold)
        self.most_used = total  # less while frames that have not arrived whole take memory
        self._waiting: dict[Waiter, None] = {}

    @property
    def exhausted(self) -> bool:
        return self.used >= self.most_used

    def take(self, size: int) -> None:
        self.used += size

    def give_back(self, size: int) -> None:
        self.used -= size
        if self._waiting or self.frames.waiting:
            self._serve_waiting()

    def _serve_waiting(self) -> None:
        # At three quarters, so that paused connections do not flap at the edge.
        while self._waiting and self.used * 4 < self.most_used * 3:
            waiter = next(iter(self._waiting))
            del self._waiting[waiter]
            waiter.ease()
        self.frames.ease()

    # --- frames that have not arrived whole ---

    def _room_for_frames(self) -> int:
        return min(self.frames.limit, self.total - self.used)

    def _frames_hold(self, held: int) -> None:
        self.most_used = self.total - min(held, self.frames.limit)
        if self._waiting:
            self._serve_waiting()

    # --- replies ---

    @property
    def reply_room(self) -> int:
        """The maximum size of the next reply.

        It is a share of what is left: later replies get less, but never nothing. Clients that do
        not read their replies can slow others down, but not stop them.
        """
        return max((self.total - self.held) // 4, MIN_REPLY)

    def hold(self, size: int) -> None:
        self.held += size

    def release(self, size: int) -> None:
        self.held -= size

    # --- waiting connections ---

    def wait(self, waiter: Waiter) -> None:
        self._waiting[waiter] = None

    def leave(self, waiter: Waiter) -> None:
        self._waiting.pop(waiter, None)


SWEEP_EVERY = 0.5  # seconds; the precision of deadlines


class Expiring(Protocol):
    deadline: float

    def time_out(self) -> None: ...


class Deadlines:
    """Calls `time_out` of the requests whose deadline has passed."""

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
