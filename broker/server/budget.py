"""How many bytes of requests and replies a connection, and the worker as a whole, may hold."""

from __future__ import annotations

from typing import Protocol

MIN_REPLY = 1 << 16


class Waiter(Protocol):
    def ease(self) -> None: ...


class Budget:
    """Counts bytes; connections that wait for room are notified when there is some."""

    def __init__(self, total: int, per_connection: int) -> None:
        self.total = total
        self.per_connection = per_connection
        self.used = 0  # unanswered requests
        self.held = 0  # replies being read from the store, or not read by their clients
        self._waiting: dict[Waiter, None] = {}

    @property
    def exhausted(self) -> bool:
        return self.used >= self.total

    def take(self, size: int) -> None:
        self.used += size

    def give_back(self, size: int) -> None:
        self.used -= size
        # At three quarters, so that paused connections do not flap at the edge.
        while self._waiting and self.used * 4 < self.total * 3:
            waiter = next(iter(self._waiting))
            del self._waiting[waiter]
            waiter.ease()

    # --- replies ---

    @property
    def reply_room(self) -> int:
        """How large the next reply may be.

        A share of what is left, so that later ones get less, but never nothing: clients that do
        not read their replies can slow others down, not stop them.
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
