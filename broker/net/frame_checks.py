"""Checks regularly, while connections wait for memory, which others have to give way."""

from __future__ import annotations

import asyncio

from moldau.broker.net.frame_memory import CHECK_S, FrameMemory


class FrameChecks:
    def __init__(self, frames: FrameMemory) -> None:
        self._frames = frames
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        frames.on_waiting = self._begin

    def _begin(self) -> None:
        if self._timer is None:
            self._due = self._loop.time() + CHECK_S
            self._timer = self._loop.call_at(self._due, self._check)

    def _check(self) -> None:
        self._timer = None
        now = self._loop.time()
        # Timers run before sockets are read: after a pause of the whole process no client seems
        # to have sent anything.
        late = now - self._due
        if late > CHECK_S:
            self._frames.forgive(late)
        self._frames.check(now)
        if self._frames.waiting:
            self._begin()
