"""Fetches that found nothing to acquire, parked at their share-partitions and woken one by one.

What one of them takes another cannot have, so waking all of them would be work for nothing: they
are served in the order in which they came, as long as something is acquired. A fetch may be parked
at several share-partitions, and leaves all of them when it is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

from moldau.broker.coordinator.shares.partitions import Led, SharePartitions
from moldau.broker.log.log import Log


class Waiter(Protocol):
    """A parked fetch."""

    def serve(self, led: Led, served: Callable[[bool], None]) -> None:
        """Try to acquire from this share-partition. `served` is told whether the fetch got
        something or an error: it has then left all its places, and the next one is served."""


class _Place:
    """The fetches parked at one share-partition, in order."""

    __slots__ = ("is_serving", "is_woken", "log", "waiters")

    def __init__(self, log: Log) -> None:
        self.log = log
        self.waiters: dict[Waiter, None] = {}
        self.is_serving = False
        self.is_woken = False


class Parking:
    def __init__(self, shares: SharePartitions) -> None:
        self._loop = asyncio.get_running_loop()
        self._places: dict[Led, _Place] = {}
        shares.on_woken = self.woken

    def __len__(self) -> int:
        return len(self._places)

    def park(self, waiter: Waiter, led: Led, log: Log) -> None:
        place = self._places.get(led)
        if place is None:
            place = self._places[led] = _Place(log)
            log.waiters.add(led, partial(self._appended, led))
        place.waiters[waiter] = None

    def leave(self, waiter: Waiter, led: Led) -> None:
        place = self._places.get(led)
        if place is not None:
            place.waiters.pop(waiter, None)
            if not place.waiters:
                del self._places[led]
                place.log.waiters.discard(led)

    def _appended(self, led: Led) -> None:
        place = self._places.get(led)
        if place is not None:
            place.log.waiters.add(led, partial(self._appended, led))  # it wakes once
            self.woken(led)

    def woken(self, led: Led) -> None:
        """Something may be acquired: serve the first fetch, at the end of this turn."""
        place = self._places.get(led)
        if place is None:
            return
        if place.is_serving:
            place.is_woken = True
        else:
            place.is_serving = True
            self._loop.call_soon(self._serve, led, place)

    def _serve(self, led: Led, place: _Place) -> None:
        place.is_woken = False
        waiter = next(iter(place.waiters), None)
        if waiter is None:
            place.is_serving = False
        else:
            waiter.serve(led, partial(self._served, led, place))

    def _served(self, led: Led, place: _Place, has_taken: bool) -> None:
        if has_taken or place.is_woken:
            self._loop.call_soon(self._serve, led, place)
        else:
            place.is_serving = False
