"""The fetches that wait for more records of one log."""

from __future__ import annotations

from collections.abc import Callable


class Waiters:
    """Each is called once, by the next `wake`, and has to register again to wait on."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: dict[object, Callable[[], None]] = {}

    def __bool__(self) -> bool:
        return bool(self.waiting)

    def add(self, waiter: object, wake: Callable[[], None]) -> None:
        self.waiting[waiter] = wake

    def discard(self, waiter: object) -> None:
        self.waiting.pop(waiter, None)

    def wake(self) -> None:
        """There is something new, or the log is gone."""
        if self.waiting:
            waiting, self.waiting = self.waiting, {}
            for wake in waiting.values():
                wake()
