"""What the shells of groups and of transactional ids have in common: timers, and requests that are
not answered yet, so that nothing stays half changed when a machine fails.

An exception in the middle of a transition leaves a machine in a state that no rule describes. Its
timers end, whoever waits is refused with COORDINATOR_NOT_AVAILABLE, and it is loaded from the store
again (`reloading.py`): nothing was promised that is not stored.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from moldau.broker.coordinator.runtime.recovery import Reloading
from moldau.broker.errors import ErrorCode

logger = logging.getLogger("moldau.coordinator")

K = TypeVar("K", bound=Hashable)  # keys of timers
K_co = TypeVar("K_co", bound=Hashable, covariant=True)


class Due(Protocol[K_co]):
    """An effect that arms a timer."""

    @property
    def key(self) -> K_co: ...

    @property
    def at_ms(self) -> int: ...


class MachineShell(ABC, Generic[K]):
    """It passes events to machines by name, and runs their effects."""

    what: ClassVar[str]  # it runs, for the log

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._open: dict[object, tuple[str, Any]] = {}  # requests that are not answered yet
        self._reloading: Reloading

    @abstractmethod
    def now_ms(self) -> int: ...

    @abstractmethod
    def _owner_of(self, key: K) -> str:
        """Whose timer it is."""

    @abstractmethod
    def _fired(self, key: K) -> None: ...

    @abstractmethod
    def _refusal(self, request: Any, error: ErrorCode) -> Any: ...

    def _unanswered(self, call: Any) -> None:
        """An answer could not be sent."""

    # --- timers ---

    def _arm(self, effect: Due[K]) -> None:
        self._cancel(effect.key)
        delay = max(effect.at_ms - self.now_ms(), 0) / 1000
        self._timers[effect.key] = self._loop.call_later(delay, self._due, effect.key)

    def _cancel(self, key: K) -> None:
        armed = self._timers.pop(key, None)
        if armed is not None:
            armed.cancel()

    def _due(self, key: K) -> None:
        self._timers.pop(key, None)
        self._fired(key)

    # --- answers ---

    def _answer(self, call: Any, answer: Any) -> None:
        """Once: whoever was refused when the machine failed does not get another answer."""
        known = self._open.pop(call, None)
        if known is None:
            return
        try:
            call.answered(answer)
        except Exception:
            # The effects behind it must run: without a write, say, the machine could never write.
            logger.exception("%s %s: a request cannot be answered", self.what, known[0])
            self._unanswered(call)

    # --- failures ---

    def _failed(self, name: str) -> None:
        """A change was left half done. Nothing of it is relied on."""
        self._reloading.start(name)
        self._abandon(name, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _abandon(self, name: str, error: ErrorCode) -> None:
        """End its timers, and refuse whoever waits."""
        for key in [key for key in self._timers if self._owner_of(key) == name]:
            self._cancel(key)
        for call, (owner, request) in list(self._open.items()):
            if owner == name:
                self._answer(call, self._refusal(request, error))
