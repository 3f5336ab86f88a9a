"""The records of a topic: from an offset, a time or the end; live; and sending some.

No group is used: reading here moves no offsets.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from broker.errors import ErrorCode
from broker.wire.records import Record, decode_headers
from ops.admin.produce import partitions_for_sending
from ops.admin.reset_offsets import parse_datetime
from ops.client import EARLIEST, LATEST, ClientError, Cluster, TopicPartition
from ops.client.partitioning import partition_of
from ops.client.reading import OffsetOutOfRange, read
from ops.client.sending import Outgoing, send
from ops.console import filters
from ops.console.formats import FORMATS, shown_bytes
from ops.console.forms import read_form
from ops.console.inputs import MAX_INT32, InvalidInput, number_of
from ops.console.live_views import TooManyLiveViews
from ops.console.rendering import Console

PER_PAGE = 50
MAX_LOOKED_AT = 20_000  # records, when few pass the filter
MAX_SECONDS = 5.0
LIVE_WAIT_MS = 1_000
MAX_LIVE_PER_SECOND = 200
LINE = 160  # characters of a value, before it is folded


class View(NamedTuple):
    """What to show: all of it is in the URL."""

    topic: str
    partition: int | None
    begin: str  # end, beginning, an offset, a time
    text: str  # the filter
    how: str  # the format of values
    committed: bool

    @classmethod
    def of(cls, request: Request) -> View:
        query = request.query_params
        partition = query.get("partition", "")
        how = query.get("format", "auto")
        return cls(
            request.path_params["topic"],
            number_of(partition, "partition", most=MAX_INT32) if partition else None,
            query.get("from", "end").strip() or "end",
            query.get("filter", ""),
            how if how in FORMATS else "auto",
            query.get("isolation") != "uncommitted",
        )

    def url(self, **changes: str) -> str:
        facts = {
            "partition": "" if self.partition is None else str(self.partition),
            "from": self.begin,
            "filter": self.text,
            "format": self.how,
            "isolation": "" if self.committed else "uncommitted",
            **changes,
        }
        query = urlencode({name: value for name, value in facts.items() if value})
        return f"/topics/{quote(self.topic, safe='')}/records?{query}"


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
        wanted, fault = _filter_of(view)
        found = await backend.ask(lambda cluster: look(cluster, view, wanted))
        return console.page(
            request, "records.html", title=f"Records of {view.topic}", view=view, found=found,
            fault=fault, formats=FORMATS, partitions=sorted(found.ends),
        )  # fmt: skip

    async def live(request: Request) -> Response:
        view = View.of(request)
        wanted, fault = _filter_of(view)
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

    async def compose(request: Request) -> Response:
        """The form to send a record; filled in from one that is there, to send it again."""
        view = View.of(request)
        again = request.query_params.get("again", "")
        filled: dict[str, str] = {"key": "", "no_key": "on", "value": "", "headers": ""}
        if again and view.partition is not None:
            place, offset = TopicPartition(view.topic, view.partition), number_of(again, "again")
            filled = await backend.ask(lambda cluster: _filled(cluster, place, offset))
        return console.page(
            request, "send.html", title=f"Send to {view.topic}", view=view, filled=filled
        )

    async def post(request: Request) -> Response:
        console.check_writable()
        form = await read_form(request)
        topic = request.path_params["topic"]
        target = str(form.get("target") or topic)
        headers = _headers(str(form.get("headers", "")))
        key = None if form.get("no_key") else str(form.get("key", "")).encode()
        value = None if form.get("no_value") else _unix_lines(str(form.get("value", ""))).encode()
        record = Outgoing(key, value, headers)
        chosen = str(form.get("partition", "")).strip()
        partition = number_of(chosen, "partition", most=MAX_INT32) if chosen else None
        place, offset = await backend.ask(lambda cluster: _send(cluster, target, partition, record))
        where = View(target, place.partition, str(offset), "", "auto", True).url()
        return console.done(request, where, f"sent: partition {place.partition}, offset {offset}")

    return [
        Route("/topics/{topic}/records", show),
        Route("/topics/{topic}/live", live),
        Route("/topics/{topic}/send", compose),
        Route("/topics/{topic}/send", post, methods=["POST"]),
    ]


def _filter_of(view: View) -> tuple[filters.Filter, str]:
    try:
        return filters.parse(view.text), ""
    except filters.InvalidFilter as fault:
        return (lambda record: False), str(fault)


# --- reading ---


def look(cluster: Cluster, view: View, wanted: filters.Filter) -> Found:
    """A page of records. From the end: the newest that pass the filter."""
    places = _places(cluster, view)
    starts = _offsets(cluster, places, EARLIEST, view.committed)
    ends = _offsets(cluster, places, LATEST, view.committed)
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


def _places(cluster: Cluster, view: View) -> list[TopicPartition]:
    found = cluster.topics([view.topic])
    if view.topic not in found:
        raise ClientError(f"there is no topic {view.topic}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    count = len(found[view.topic].partitions)
    if view.partition is None:
        return [TopicPartition(view.topic, number) for number in range(count)]
    if view.partition >= count:
        raise ClientError(
            f"{view.topic} has partitions 0 to {count - 1}, not {view.partition}",
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        )
    return [TopicPartition(view.topic, view.partition)]


def _offsets(
    cluster: Cluster, places: list[TopicPartition], timestamp: int, committed: bool
) -> dict[int, int]:
    found = cluster.list_offsets(dict.fromkeys(places, timestamp), int(committed))
    return {place.partition: offset for place, offset in found.items()}


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
        found = _offsets(cluster, places, parse_datetime(begin), view.committed)
    except ValueError as fault:
        raise InvalidInput(f"from: {fault}") from None
    return {each: found[each] if found[each] >= 0 else ends[each] for each in ends}


def one_line(value: str) -> str:
    """The beginning of a value; all of it where that is a line."""
    line = " ".join(value.split()) if "\n" in value else value
    return line if len(line) <= LINE else line[: LINE - 1] + "…"


def row_of(partition: int, record: Record, how: str) -> dict[str, Any]:
    value, value_format = shown_bytes(record.value, how)
    key, key_format = shown_bytes(record.key, "auto" if how in ("json", "msgpack") else how)
    return {
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": key,
        "key_format": key_format,
        "value": value,
        "line": one_line(value),
        "value_format": value_format,
        "size": len(record.value or b""),
        "headers": [(name, shown_bytes(data)[0]) for name, data in decode_headers(record.headers)],
    }


# --- live ---


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
    """Each has the rows of what came; what is too much is counted."""
    follow, cluster = console.backend.follow, console.backend.cluster()
    try:
        places = await follow(lambda cluster: _places(cluster, view), cluster)
        positions = await follow(
            lambda cluster: _offsets(cluster, places, LATEST, view.committed), cluster
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
            positions[place.partition] = _offsets(cluster, [place], EARLIEST, view.committed)[
                place.partition
            ]
            continue
        positions[place.partition] = found.next_offset
        rows += [row_of(place.partition, each, view.how) for each in found.records if wanted(each)]
    skipped = max(len(rows) - MAX_LIVE_PER_SECOND, 0)
    rows = rows[skipped:]
    rows.reverse()
    return rows, skipped


# --- sending ---


def _headers(text: str) -> list[tuple[str, bytes | None]]:
    headers: list[tuple[str, bytes | None]] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        name, colon, value = line.partition(":")
        if not colon:
            raise ClientError(f"headers are lines of name: value, not {line!r}")
        headers.append((name.strip(), value.strip().encode()))
    return headers


def _unix_lines(text: str) -> str:
    return text.replace("\r\n", "\n")  # browsers send forms so


def _send(
    cluster: Cluster, topic: str, partition: int | None, record: Outgoing
) -> tuple[TopicPartition, int]:
    partitions = partitions_for_sending(cluster, topic)
    if partition is None:
        partition = partition_of(record.key, int(time.time() * 1000), partitions)
    elif partition >= partitions:
        raise ClientError(f"{topic} has partitions 0 to {partitions - 1}, not {partition}")
    place = TopicPartition(topic, partition)
    return place, send(cluster, place, [record])


def _filled(cluster: Cluster, place: TopicPartition, offset: int) -> dict[str, str]:
    try:
        found = read(cluster, place, offset, committed=False)
    except OffsetOutOfRange:
        raise ClientError(f"{place} has no offset {offset}", ErrorCode.RESOURCE_NOT_FOUND) from None
    record = next((each for each in found.records if each.offset == offset), None)
    if record is None:
        raise ClientError(f"{place} has no record at offset {offset}", ErrorCode.RESOURCE_NOT_FOUND)
    try:
        headers = [
            f"{name}: {(value or b'').decode()}" for name, value in decode_headers(record.headers)
        ]
        return {
            "key": (record.key or b"").decode(),
            "no_key": "on" if record.key is None else "",
            "value": (record.value or b"").decode(),
            "no_value": "on" if record.value is None else "",
            "headers": "\n".join(headers),
        }
    except UnicodeDecodeError:
        raise ClientError(
            f"{place}, offset {offset} is not text: `moldau consume --json` and `moldau produce "
            "--json` copy it byte by byte"
        ) from None
