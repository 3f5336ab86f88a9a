"""Changes this worker announced and other workers have not applied yet.

A client that changes a topic through one worker may ask another the next moment, so the reply to a
change waits until every worker has applied it. The announcement carries the worker to acknowledge
to and a number; the acknowledgement comes through that worker's wake stream. A worker that takes
longer than PATIENCE_S (dead, stopped) is not waited for again until it acknowledges or restarts.
"""

from __future__ import annotations

import asyncio
import logging
import time

import msgspec

logger = logging.getLogger("moldau.store")

PATIENCE_S = 1.0


class Acknowledgement(msgspec.Struct, frozen=True, array_like=True):
    """`worker` has applied change `number` of the worker whose wake stream this is in."""

    number: int
    worker: int


class _Pending:
    """`done` gets the workers that did not acknowledge in time."""

    def __init__(self, missing: set[int]) -> None:
        self.missing = missing
        self.done: asyncio.Future[set[int]] = asyncio.get_running_loop().create_future()
        self.timer: asyncio.TimerHandle | None = None


class Unapplied:
    def __init__(self, worker: int, workers: int) -> None:
        self._others = frozenset(range(workers)) - {worker}
        self._silent: set[int] = set()
        self._pending: dict[int, _Pending] = {}
        # Acknowledgements of a former process with this index are in the wake stream too.
        self.last_number = time.time_ns()

    # --- announcing ---

    def expect(self) -> int | None:
        """The number for a change about to be announced; None if no worker has to acknowledge.

        Before the announcement, because acknowledgements may arrive before its reply does.
        """
        if not self._others:
            return None
        self.last_number += 1
        number = self.last_number
        awaited = set(self._others - self._silent)
        if awaited:
            pending = self._pending[number] = _Pending(awaited)
            loop = asyncio.get_running_loop()
            pending.timer = loop.call_later(PATIENCE_S, self._give_up, number)
        return number

    def forget(self, number: int) -> None:
        """The change could not be announced."""
        self._finish(number, set())

    # --- acknowledgements ---

    def acknowledged(self, receipt: Acknowledgement) -> None:
        self.returned(receipt.worker)
        pending = self._pending.get(receipt.number)
        if pending is not None:
            pending.missing.discard(receipt.worker)
            if not pending.missing:
                self._finish(receipt.number, set())

    def returned(self, worker: int) -> None:
        """A worker is running, possibly again."""
        self._silent.discard(worker)

    def _give_up(self, number: int) -> None:
        pending = self._pending.get(number)
        if pending is not None:
            self._silent |= pending.missing
            self._finish(number, pending.missing)

    def _finish(self, number: int, missing: set[int]) -> None:
        pending = self._pending.pop(number, None)
        if pending is not None:
            if pending.timer is not None:
                pending.timer.cancel()
            pending.done.set_result(missing)

    # --- waiting ---

    async def wait(self) -> None:
        """Until every change announced so far is applied by all workers that are running."""
        pending = [each.done for each in self._pending.values()]
        if not pending:
            return
        await asyncio.wait(pending)
        missing = set[int]().union(*(each.result() for each in pending))
        if missing:
            logger.warning(
                "a change was not applied within %g s by worker %s: it may answer with the "
                "former state",
                PATIENCE_S,
                ", ".join(map(str, sorted(missing))),
            )
