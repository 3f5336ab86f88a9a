"""The records of a topic: from an offset, a time or the end.

No group is used: reading here moves no offsets.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from moldau.ops.client import EARLIEST, LATEST, Cluster, TopicPartition
from moldau.ops.client.reading import OffsetOutOfRange, read
from moldau.ops.console import filters
from moldau.ops.console.formats import FORMATS
from moldau.ops.console.inputs import InvalidInput, number_of
from moldau.ops.console.record_views import View, filter_of, offsets_of, places_of, row_of
from moldau.ops.console.rendering import Console
from moldau.ops.operations.reset_offsets import parse_datetime

PER_PAGE = 50
MAX_LOOKED_AT = 20_000  # records, when few pass the filter
MAX_SECONDS = 5.0


class Found(NamedTuple):
    rows: list[dict[str, Any]]
    looked_at: int
    positions: dict[int, int]  # where to go on, by partition
    starts: dict[int, int]
    ends: dict[int, int]


def routes(console: Console) -> list[BaseRoute]:
    backend = console.backend

    async def show(request: Request) -> Response:
        view = View.of(request)
        wanted, fault = filter_of(view)
        found = await backend.ask(lambda cluster: look(cluster, view, wanted))
        return console.page(
            request, "records.html", title=f"Records of {view.topic}", view=view, found=found,
            fault=fault, formats=FORMATS, partitions=sorted(found.ends),
        )  # fmt: skip

    return [Route("/topics/{topic}/records", show)]


def look(cluster: Cluster, view: View, wanted: filters.Filter) -> Found:
    """A page of records. From the end: the newest that pass the filter."""
    places = places_of(cluster, view)
    starts = offsets_of(cluster, places, EARLIEST, view.committed)
    ends = offsets_of(cluster, places, LATEST, view.committed)
    backwards = view.begin == "end"
    positions = _beginnings(cluster, view, places, starts, ends)
    rows: list[dict[str, Any]] = []
    looked_at = 0
    deadline = time.monotonic() + MAX_SECONDS
    for place in places:
        partition = place.partition
        position, taken = positions[partition], 0
        while position < ends[partition] and looked_at < MAX_LOOKED_AT:
            if time.monotonic() > deadline or (taken >= PER_PAGE and not backwards):
                break
            try:
                found = read(cluster, place, position, committed=view.committed)
            except OffsetOutOfRange:
                break
            looked_at += len(found.records)
            position = max(found.next_offset, position + 1)
            for record in found.records:
                if wanted(record):
                    rows.append(row_of(partition, record, view.how))
                    taken += 1
                    if taken >= PER_PAGE and not backwards:
                        position = record.offset + 1
                        break
        positions[partition] = position
    rows.sort(key=lambda row: (row["timestamp"], row["partition"], row["offset"]))
    shown = rows[-PER_PAGE:] if backwards else rows[:PER_PAGE]
    if backwards:
        shown.reverse()
    return Found(shown, looked_at, positions, starts, ends)


def _beginnings(
    cluster: Cluster,
    view: View,
    places: list[TopicPartition],
    starts: dict[int, int],
    ends: dict[int, int],
) -> dict[int, int]:
    begin = view.begin
    if begin == "end":
        # With a filter further back: few may pass it.
        back = PER_PAGE if not view.text else MAX_LOOKED_AT // max(len(places), 1)
        return {each: max(ends[each] - back, starts[each]) for each in ends}
    if begin == "beginning":
        return dict(starts)
    if begin.isdecimal():
        offset = number_of(begin, "from")
        return {each: min(max(offset, starts[each]), ends[each]) for each in ends}
    try:
        found = offsets_of(cluster, places, parse_datetime(begin), view.committed)
    except ValueError as fault:
        raise InvalidInput(f"from: {fault}") from None
    return {each: found[each] if found[each] >= 0 else ends[each] for each in ends}
