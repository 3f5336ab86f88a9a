"""Threads for one kind of work, as many as there may be of it at once.

asyncio.to_thread has one pool for everything: what takes long there holds up what is quick.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class Threads:
    def __init__(self, name: str, most: int) -> None:
        self._pool = ThreadPoolExecutor(most, thread_name_prefix=name)

    async def run(self, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Run `work` in the context of the caller; waits while all threads are busy."""
        context = contextvars.copy_context()
        called = partial(context.run, work, *args, **options)
        return await asyncio.get_running_loop().run_in_executor(self._pool, called)
