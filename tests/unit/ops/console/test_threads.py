"""Threads of their own for what takes long; and how many live views there may be."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar

import pytest

from moldau.ops.console.backend import Backend
from moldau.ops.console.live_views import MAX_LIVE, LiveViews, TooManyLiveViews
from moldau.ops.console.threads import Threads
from moldau.ops.http.snapshot import Snapshot

who: ContextVar[str] = ContextVar("who")


def test_one_kind_of_work_does_not_hold_up_another() -> None:
    async def check() -> None:
        long, short, most = Threads("long", 20), Threads("short", 1), 20
        barrier = threading.Barrier(most + 1)
        waiting = [asyncio.ensure_future(long.run(barrier.wait, 60)) for _ in range(most)]
        await asyncio.sleep(0)
        assert await short.run(max, 1, 2) == 2
        await short.run(barrier.wait, 60)  # is passed only once all of them run
        await asyncio.gather(*waiting)

    asyncio.run(check())


def test_pages_do_not_wait_for_live_views() -> None:
    async def no_reports() -> Snapshot:
        raise AssertionError("not asked for")

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
        return await Threads("x", 1).run(who.get)

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
