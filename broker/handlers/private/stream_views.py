"""STREAM_VIEWS: reads what Redis shows of streams (broker/private/stream_views.py)."""

from __future__ import annotations

import time

from moldau.broker.errors import StoreFault
from moldau.broker.private.stream_views import MAX_STREAMS, StreamsWanted, StreamView
from moldau.broker.store.native_views import NativeViews

LOOKING_S = 1.0


class StreamViews:
    def __init__(self, views: NativeViews) -> None:
        self._views = views

    async def answer(self, wanted: StreamsWanted) -> list[StreamView | None]:
        until = time.monotonic() + LOOKING_S
        found: list[StreamView | None] = []
        for key in wanted.streams[:MAX_STREAMS]:
            if time.monotonic() > until:
                found.append(None)
                continue
            try:
                view = await self._views.view(
                    key, until, has_groups=wanted.has_groups, has_entries=wanted.has_entries
                )
            except StoreFault:  # deleted or replaced between two commands, or the store is down
                view = None
            found.append(view)
        return found
