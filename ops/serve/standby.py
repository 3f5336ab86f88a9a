"""What a standby has ready: a loaded process for each worker and router that it will need.

Imports are most of the time that a start takes, so the processes are those of the spare
(`spare.py`), one for each. They wait for their settings, and end with the supervisor.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from moldau.ops.serve.child_spec import ChildSpec
from moldau.ops.serve.spare import Spare


@dataclass
class Tenure:
    """The time for which this broker may serve the store: how to wait for it and to keep it."""

    # Returns when the lease was lost to another broker; asks whether workers serve, and so keep it.
    keep: Callable[[Callable[[], bool]], Awaitable[None]]
    facts: Callable[[], dict[str, Any]]
    # None: it has been taken before the supervisor started.
    until_taken: Callable[[], Awaitable[None]] | None = None
    # What to start then, in place of the supervisor's own stages.
    stages: Callable[[], Sequence[Sequence[ChildSpec]]] = list
    on_standby: Callable[[], None] = lambda: None
    warm: Sequence[ChildSpec] = ()  # processes to load while it waits
    # What runs meanwhile.
    background: Sequence[Callable[[], Coroutine[Any, Any, None]]] = field(default_factory=tuple)


class WarmProcesses:
    def __init__(self, specs: Sequence[ChildSpec]) -> None:
        self._spares = [Spare(spec) for spec in specs]
        self._keeping: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        """Load them, and keep them."""
        self._keeping = [asyncio.ensure_future(spare.keep()) for spare in self._spares]

    def take(self) -> subprocess.Popen[bytes] | None:
        """A loaded process; None if there is none left."""
        for spare in self._spares:
            if (process := spare.take()) is not None:
                return process
        return None

    def reap(self) -> None:
        for spare in self._spares:
            spare.reap()

    async def stop(self) -> None:
        """End those that were not taken."""
        for task in self._keeping:
            task.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)
        for spare in self._spares:
            await spare.stop()
