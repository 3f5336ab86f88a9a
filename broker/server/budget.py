"""How many bytes of unanswered requests a connection, and a worker as a whole, may hold."""

from __future__ import annotations

from typing import Protocol


class Waiter(Protocol):
    def ease(self) -> None: ...


class Budget:
    """Counts bytes; connections that found it exhausted are told when there is room again."""

    def __init__(self, total: int, per_connection: int) -> None:
        self.total = total
        self.per_connection = per_connection
        self.used = 0
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

    def wait(self, waiter: Waiter) -> None:
        self._waiting[waiter] = None

    def leave(self, waiter: Waiter) -> None:
        self._waiting.pop(waiter, None)
