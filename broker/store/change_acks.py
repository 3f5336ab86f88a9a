"""Waits until every worker has applied the changes that this worker announced.

A client that changes a topic through one worker may ask another the next moment, so the reply to a
change waits until every worker has applied it. The announcement carries the worker to acknowledge
to and a number; the acknowledgement comes through that worker's wake stream. A worker that takes
longer than PATIENCE_S (it is dead or stopped) is not waited for until it acknowledges or restarts.

A worker that starts announces itself, then loads everything, then serves. So it has every change
that is before its announcement in the change stream, and acknowledges every change after it. The
worker that made a change knows which of the two it is once it has read its own announcement.
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


class ChangeAcks:
    def __init__(self, worker: int, workers: int) -> None:
        self._worker = worker
        self._others = frozenset(range(workers)) - {worker}
        self._silent: set[int] = set()
        self._pending: dict[int, _Pending] = {}
        # Acknowledgements of a former process with this index are in the wake stream too.
        self.last_number = time.time_ns()

    # --- announcing ---

    def expect(self) -> int | None:
        """The number for a change about to be announced; None: no worker has to acknowledge it.

        Call it before the announcement: acknowledgements may arrive before its reply.
        """
        if not self._others:
            return None
        self.last_number += 1
        number = self.last_number
        # This worker too, until it has read the announcement.
        pending = self._pending[number] = _Pending({*self._others - self._silent, self._worker})
        loop = asyncio.get_running_loop()
        pending.timer = loop.call_later(PATIENCE_S, self._give_up, number)
        return number

    def forget(self, number: int) -> None:
        """The change could not be announced."""
        self._finish(number, set())

    # --- the change stream, in its order ---

    def announced(self, number: int) -> None:
        """This worker has read its own announcement."""
        self._applied(number, self._worker)

    def started(self, worker: int) -> None:
        """A worker has announced that it starts, possibly again."""
        self._silent.discard(worker)
        for number, pending in list(self._pending.items()):
            if self._worker in pending.missing:  # the change is announced behind this
                pending.missing.add(worker)
            else:
                self._applied(number, worker)

    # --- acknowledgements ---

    def acknowledged(self, receipt: Acknowledgement) -> None:
        self._silent.discard(receipt.worker)
        self._applied(receipt.number, receipt.worker)

    def _applied(self, number: int, worker: int) -> None:
        pending = self._pending.get(number)
        if pending is not None:
            pending.missing.discard(worker)
            if not pending.missing:
                self._finish(number, set())

    def _give_up(self, number: int) -> None:
        pending = self._pending.get(number)
        if pending is not None:
            silent = pending.missing - {self._worker}
            self._silent |= silent
            self._finish(number, silent)

    def _finish(self, number: int, missing: set[int]) -> None:
        pending = self._pending.pop(number, None)
        if pending is not None:
            if pending.timer is not None:
                pending.timer.cancel()
            pending.done.set_result(missing)

    # --- waiting ---

    async def wait(self) -> None:
        """Wait until all running workers have applied every change announced so far."""
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
