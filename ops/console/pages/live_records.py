"""The live tail of a topic, as server-sent events. What is too much for a page is counted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from moldau.ops.client import EARLIEST, LATEST, ClientError, Cluster, TopicPartition
from moldau.ops.client.reading import OffsetOutOfRange, read
from moldau.ops.console import filters
from moldau.ops.console.inputs import InvalidInput
from moldau.ops.console.live_views import TooManyLiveViews
from moldau.ops.console.record_views import View, filter_of, offsets_of, places_of, row_of
from moldau.ops.console.rendering import Console

LIVE_WAIT_MS = 1_000
MAX_LIVE_PER_SECOND = 200


def routes(console: Console) -> list[BaseRoute]:
    backend = console.backend

    async def live(request: Request) -> Response:
        view = View.of(request)
        wanted, fault = filter_of(view)
        if fault:
            raise InvalidInput(fault)
        browser = console.browser_of(request)
        if "text/event-stream" not in request.headers.get("accept", ""):
            # Browsers do not show pages the text of an error: to them an event says it.
            try:
                backend.live_views.check(browser)
            except TooManyLiveViews as refusal:
                raise HTTPException(429, str(refusal)) from None
        events = _follow(console, view, wanted, browser)
        return StreamingResponse(events, media_type="text/event-stream")

    return [Route("/topics/{topic}/live", live)]


async def _follow(
    console: Console, view: View, wanted: filters.Filter, browser: str
) -> AsyncIterator[str]:
    """Server-sent events, while there is room for the view."""
    try:
        with console.backend.live_views.one(browser):
            async for event in _events(console, view, wanted):
                yield event
    except TooManyLiveViews as refusal:
        yield sent_event("state", str(refusal))


async def _events(console: Console, view: View, wanted: filters.Filter) -> AsyncIterator[str]:
    """Each event has the rows of new records; those that are too many are counted."""
    follow, cluster = console.backend.follow, console.backend.cluster()
    try:
        places = await follow(lambda cluster: places_of(cluster, view), cluster)
        positions = await follow(
            lambda cluster: offsets_of(cluster, places, LATEST, view.committed), cluster
        )
        yield sent_event("state", "live")
        while True:
            rows, skipped = await follow(
                lambda cluster: _new_rows(cluster, places, positions, view, wanted), cluster
            )
            if rows or skipped:
                text = console.fragment("rows.html", rows=rows, view=view, skipped=skipped)
                yield sent_event("rows", text)
            else:
                yield ": nothing new\n\n"  # a client that is gone is noticed
    except ClientError as error:
        yield sent_event("state", cluster.worded(error))
    finally:
        await follow(Cluster.close, cluster)


def sent_event(name: str, text: str) -> str:
    """A server-sent event. A carriage return would end a line of it."""
    lines = text.replace("\r", "&#13;").split("\n")
    return f"event: {name}\n" + "".join(f"data: {line}\n" for line in lines) + "\n"


def _new_rows(
    cluster: Cluster,
    places: list[TopicPartition],
    positions: dict[int, int],
    view: View,
    wanted: filters.Filter,
) -> tuple[list[dict[str, Any]], int]:
    rows: list[dict[str, Any]] = []
    for place in places:
        wait_ms = 0 if rows else LIVE_WAIT_MS // len(places)
        try:
            found = read(
                cluster,
                place,
                positions[place.partition],
                wait_ms=wait_ms,
                committed=view.committed,
            )
        except OffsetOutOfRange:
            positions[place.partition] = offsets_of(cluster, [place], EARLIEST, view.committed)[
                place.partition
            ]
            continue
        positions[place.partition] = found.next_offset
        rows += [row_of(place.partition, each, view.how) for each in found.records if wanted(each)]
    skipped = max(len(rows) - MAX_LIVE_PER_SECOND, 0)
    rows = rows[skipped:]
    rows.reverse()
    return rows, skipped
