"""Prepares the store before workers start: brings its format up to date."""

from __future__ import annotations

import asyncio
import threading

from moldau.broker.errors import StoreFault
from moldau.broker.process import BootFailure
from moldau.broker.store.probe import is_up_to_date


async def bring_up_to_date(url: str, socket: str | None) -> None:
    """Raises BootFailure when the store cannot be used. `socket` is an embedded store's."""
    # Without redis-py, which takes a while to import: an embedded store mostly needs nothing.
    if socket is not None and await is_up_to_date(socket):
        return
    stopped = threading.Event()
    try:
        await asyncio.to_thread(_migrate, url, stopped)
    except StoreFault as fault:
        raise BootFailure(str(fault)) from None
    finally:
        stopped.set()


def _migrate(url: str, stopped: threading.Event) -> None:
    from moldau.broker.store.blocking import BlockingStore
    from moldau.broker.store.format import migrate

    with BlockingStore(url) as store:
        migrate(store, stopped.is_set)
