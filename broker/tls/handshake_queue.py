"""Decides which connections may begin their TLS handshake, and which have exceeded their time.

    silent     accepted, and nothing has arrived: no work has been done for it yet
    ready      its first bytes are there: it waits for its turn
    shaking    its handshake is in progress

A handshake is the most expensive part of a connection. Therefore at most MAX_ACTIVE are in progress
at a time, not counting those whose clients have not answered for IDLE_S: they must not keep others
out. Silent connections and those in progress are limited to MAX_UNFINISHED each, and the one that
has been idle longest gives way.

A client has HANDSHAKE_S for each step and TOTAL_S for all of them. While it waits for its turn, or
for the process, its clock stands still.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

HANDSHAKE_S = 10.0
TOTAL_S = 60.0
IDLE_S = 1.0
MAX_ACTIVE = 256
MAX_UNFINISHED = 1024

K = TypeVar("K", bound=Hashable)


class Shaking:
    __slots__ = ("began", "last")

    def __init__(self, now: float) -> None:
        self.began = self.last = now


class HandshakeQueue(Generic[K]):
    def __init__(self) -> None:
        self._silent: dict[K, float] = {}  # since when, in that order
        self._ready: dict[K, None] = {}
        self._shaking: dict[K, Shaking] = {}
        self._idle: set[K] = set()  # of those

    def __len__(self) -> int:
        return len(self._silent) + len(self._ready) + len(self._shaking)

    @property
    def is_full(self) -> bool:
        """True if so many wait for their turn that no more should be accepted."""
        return len(self._ready) >= MAX_UNFINISHED

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)

    def accepted(self, key: K, now: float) -> K | None:
        """Add a connection. Returns the one that gives way for it, if any."""
        self._silent[key] = now
        if len(self._silent) <= MAX_UNFINISHED:
            return None
        oldest = next(iter(self._silent))
        del self._silent[oldest]
        return oldest

    def spoke(self, key: K) -> None:
        """Note that its first bytes have arrived."""
        if self._silent.pop(key, None) is not None:
            self._ready[key] = None

    def begin(self, now: float) -> tuple[K | None, K | None]:
        """Return the connection whose handshake may begin, if any, and the one that gives way for
        it."""
        if not self._ready or len(self._shaking) - len(self._idle) >= MAX_ACTIVE:
            return None, None
        key = next(iter(self._ready))
        del self._ready[key]
        loser = None
        if len(self._shaking) >= MAX_UNFINISHED:
            loser = min(self._shaking, key=lambda each: self._shaking[each].last)
            self.ended(loser)
        self._shaking[key] = Shaking(now)
        return key, loser

    def ended(self, key: K) -> None:
        self._silent.pop(key, None)
        self._ready.pop(key, None)
        self._shaking.pop(key, None)
        self._idle.discard(key)

    def forgive(self, seconds: float) -> None:
        """Discount the time in which the process was stopped or busy."""
        self._silent = {key: since + seconds for key, since in self._silent.items()}
        for each in self._shaking.values():
            each.began += seconds
            each.last += seconds

    def overdue(self, now: float, has_advanced: Callable[[K], bool]) -> list[K]:
        """Return and forget connections that exceeded their time. `has_advanced` tells whether a
        client has sent something since the last call, or something that has not been read yet."""
        late = []
        for key, since in self._silent.items():
            if now - since <= HANDSHAKE_S:
                break
            if not has_advanced(key):
                late.append(key)
        for key, each in self._shaking.items():
            if has_advanced(key):
                each.last = now
                self._idle.discard(key)
            elif now - each.last > IDLE_S:
                self._idle.add(key)
            if now - each.last > HANDSHAKE_S or now - each.began > TOTAL_S:
                late.append(key)
        for key in late:
            self.ended(key)
        return late
