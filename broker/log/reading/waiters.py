"""The fetches that wait for more records of one log."""

from __future__ import annotations

from collections.abc import Callable


class Waiters:
    """Each is called once, by the next `wake`, and has to register again to wait on."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[object, Callable[[], None]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, waiter: object, wake: Callable[[], None]) -> None:
        self._waiting[waiter] = wake

    def discard(self, waiter: object) -> None:
        self._waiting.pop(waiter, None)

    def wake(self) -> None:
        """There is something new, or the log is gone."""
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            for wake in waiting.values():
                wake()
