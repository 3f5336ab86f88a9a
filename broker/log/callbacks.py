"""Waiting for a callback in a coroutine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# Called once something is done: with None, or with what went wrong.
Completion = Callable[[BaseException | None], None]


async def await_callback(begin: Callable[[Callable[[T | BaseException], None]], None]) -> T:
    """Start something that takes a callback and wait for the call: its value, raised if a fault.

    Calls after the first are ignored, and so are calls after the waiting task was cancelled.
    """
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def done(outcome: T | BaseException) -> None:
        if future.done():
            return
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    begin(done)
    return await future
