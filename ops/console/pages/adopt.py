"""Adopting a Redis stream as a topic: what it holds, then the topic.

The broker checks and chooses when the topic is created; a dry run of that is the preview, with the
newest entries beside the records that they will be.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import quote

from starlette.datastructures import FormData, QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from moldau.broker.errors import ErrorCode
from moldau.broker.log.native.fields import from_fields
from moldau.broker.private.stream_views import MAX_STREAMS, EntryView
from moldau.broker.store.stream_ids import parse
from moldau.broker.wire.records import decode_headers
from moldau.ops.client import ClientError, Cluster, refusal
from moldau.ops.console.formats import shown_bytes
from moldau.ops.console.inputs import number_of, read_form
from moldau.ops.console.rendering import Console
from moldau.ops.console.streams import YEAR_2001_MS, Stream
from moldau.ops.local_broker import LocalWorkers
from moldau.ops.operations.adoption import CHOOSE, PARTITION, Adoption, chosen_bits, name_for
from moldau.ops.operations.streams import stream_keys, stream_views


class Preview(NamedTuple):
    refusal: str  # why it cannot be adopted; empty: it can
    bits: int
    streams: list[Stream]
    entries: list[dict[str, Any]]


def routes(console: Console) -> list[BaseRoute]:
    backend = console.backend

    async def show(request: Request) -> Response:
        """The form; and, once a stream is named, what it holds."""
        wanted = _wanted(request.query_params)
        preview = None
        if wanted is not None:
            preview = await backend.ask(lambda cluster: look(cluster, wanted))
        return console.page(
            request, "adopt.html", title="Adopt a stream", wanted=wanted, preview=preview
        )

    async def adopt(request: Request) -> Response:
        console.check_writable()
        wanted = _wanted(await read_form(request))
        if wanted is None:
            raise ClientError("name the stream to adopt")
        await backend.ask(lambda cluster: _adopt(cluster, wanted))
        said = f"{wanted.stream} is the topic {wanted.topic}; its data is as it was"
        return console.done(request, f"/topics/{quote(wanted.topic, safe='')}", said)

    return [Route("/adopt", show), Route("/adopt", adopt, methods=["POST"])]


def _wanted(given: QueryParams | FormData) -> Adoption | None:
    """None: no stream is named. Raises ClientError."""

    def text(name: str) -> str:
        return str(given.get(name, "")).strip()

    stream = text("stream")
    if not stream:
        return None
    topic = text("topic") or name_for(stream)
    if not topic:
        raise ClientError(f"no topic name can be derived from {stream}: choose one")
    partitions = number_of(text("partitions") or "1", "partitions", least=1, most=10_000)
    if partitions > 1 and PARTITION not in stream:
        raise ClientError(
            f"{partitions} partitions need as many streams: put {PARTITION} into the key, as in "
            f"{stream}:{PARTITION}"
        )
    return Adoption(topic, stream, partitions, text("value") or None)


def look(cluster: Cluster, wanted: Adoption) -> Preview:
    """Ask as if it were adopted, and look into the streams.

    The streams are shown only to who may create the topic: the dry run is asked as the user.
    """
    made = wanted.request(cluster, CHOOSE, dry_run=True)
    if made.error_code not in (0, ErrorCode.TOPIC_ALREADY_EXISTS):
        error = refusal(f"topic {wanted.topic}", made.error_code, made.error_message)
        return Preview(cluster.worded(error), 0, [], [])
    keys = stream_keys(wanted.stream, wanted.topic, range(wanted.partitions))
    views = stream_views(LocalWorkers(cluster), keys[:MAX_STREAMS], entries=True) or []
    streams = [
        Stream(number, key.decode("utf-8", "replace"), view)
        for number, (key, view) in enumerate(zip(keys, views, strict=False))
        if view is not None
    ]
    bits = chosen_bits(made)
    exists = made.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    said = f"there is a topic {wanted.topic} already: choose another name" if exists else ""
    return Preview(said, bits, streams, [_row(wanted, *each) for each in _newest(streams)])


def _newest(streams: list[Stream]) -> list[tuple[int, EntryView]]:
    found = [(stream.partition, entry) for stream in streams for entry in stream.view.entries]
    found.sort(key=lambda each: parse(each[1].id.encode()), reverse=True)
    return found[:10]


def _row(wanted: Adoption, partition: int, entry: EntryView) -> dict[str, Any]:
    """An entry, and the record that it will be; long values are cut off in both."""
    words = [word for field in entry.fields for word in (field.name, field.value)]
    value_field = None if wanted.value is None else wanted.value.encode()
    record = from_fields(words, value_field)
    ms = parse(entry.id.encode()).ms
    return {
        "partition": partition,
        "id": entry.id,
        "ms": ms if ms >= YEAR_2001_MS else None,
        "fields": [
            (shown_bytes(field.name, "text")[0], shown_bytes(field.value)[0], field.size)
            for field in entry.fields
        ],
        "more": entry.count - len(entry.fields),
        "is_cut": any(field.size > len(field.value) for field in entry.fields),
        "key": None if record.key is None else shown_bytes(record.key)[0],
        "value": None if record.value is None else shown_bytes(record.value)[0],
        "headers": [(name, shown_bytes(data)[0]) for name, data in decode_headers(record.headers)],
    }


def _adopt(cluster: Cluster, wanted: Adoption) -> None:
    made = wanted.request(cluster, CHOOSE, dry_run=False)
    if made.error_code:
        raise refusal(f"topic {wanted.topic}", made.error_code, made.error_message)
