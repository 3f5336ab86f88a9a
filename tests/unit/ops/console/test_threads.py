"""Threads of their own for what takes long; and how many live views there may be."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar

import pytest

from moldau.ops.console.backend import Backend
from moldau.ops.console.live_views import MAX_LIVE, LiveViews, TooManyLiveViews
from moldau.ops.http.snapshot import Snapshot

who: ContextVar[str] = ContextVar("who")


async def no_reports() -> Snapshot:
    raise AssertionError("not asked for")


def test_pages_do_not_wait_for_live_views() -> None:
    async def check() -> None:
        backend = Backend(1, no_reports, lambda: None)
        barrier = threading.Barrier(MAX_LIVE + 1)
        cluster = backend.as_operator()
        views = [
            asyncio.ensure_future(backend.follow(lambda _: barrier.wait(60), cluster))
            for _ in range(MAX_LIVE)
        ]
        await asyncio.sleep(0)
        await backend.ask(lambda _: barrier.wait(60))  # is passed only while all of them wait
        await asyncio.gather(*views)

    asyncio.run(check())


def test_work_is_done_in_the_context_of_who_asks() -> None:
    async def check() -> str:
        who.set("alice")
        backend = Backend(1, no_reports, lambda: None)
        assert await backend.follow(lambda _: who.get(), backend.as_operator()) == "alice"
        return await backend.ask(lambda _: who.get())

    assert asyncio.run(check()) == "alice"


def test_live_views_are_limited_in_all_and_of_a_browser() -> None:
    views = LiveViews(most=3, most_of_browser=2)
    with views.one("a"), views.one("a"):
        with pytest.raises(TooManyLiveViews, match="this browser"), views.one("a"):
            pass
        with views.one("b"), pytest.raises(TooManyLiveViews, match="there are 3"):
            views.check("c")
        views.check("c")
    views.check("a")
