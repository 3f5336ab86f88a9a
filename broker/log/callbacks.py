"""From callbacks to coroutines: for those who can wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

Completion = Callable[[BaseException | None], None]


async def settled(begin: Callable[[Completion], None]) -> None:
    """Begin something that tells when it is done, and wait for that; raises what went wrong."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(fault: BaseException | None) -> None:
        if future.done():
            return
        if fault is None:
            future.set_result(None)
        else:
            future.set_exception(fault)

    begin(done)
    await future
